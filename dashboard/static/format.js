// Figures as people read them. Times are seconds.

const DASH = "–";

export function count(value) {
  return value == null ? DASH : Math.round(value).toLocaleString("en");
}

export function percent(value, digits = 1) {
  return value == null ? DASH : `${(100 * value).toFixed(digits)}%`;
}

export function figure(value) {
  if (value == null) return DASH;
  const size = Math.abs(value);
  if (size >= 100) return Math.round(value).toLocaleString("en");
  if (size >= 10) return value.toFixed(1);
  if (size >= 0.1 || size === 0) return value.toFixed(2);
  return size >= 0.001 ? value.toFixed(4) : value.toExponential(1);
}

export function duration(seconds) {
  if (seconds == null) return DASH;
  for (const [size, unit] of [[86400, "d"], [3600, "h"], [60, "min"]]) {
    if (seconds >= 2 * size) return `${figure(seconds / size).replace(/\.0+$/, "")} ${unit}`;
  }
  return seconds >= 10 ? `${Math.round(seconds)} s` : `${Math.max(seconds, 0).toFixed(1)} s`;
}

export function some(number, noun) {
  return `${count(number)} ${noun}${number === 1 ? "" : "s"}`;
}

export function clock(seconds) {
  return new Date(1000 * seconds).toLocaleTimeString("en-GB");
}

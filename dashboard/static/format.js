// Figures as people read them. Times are seconds, sizes bytes.

const DASH = "–";
const HUGE = 1e12; // a count from here on is a claim that nobody reads digit by digit
const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 }); // making one costs more than using it

export function count(value) {
  if (value == null) return DASH;
  return Math.abs(value) < HUGE ? whole.format(value) : value.toExponential(1);
}

export function percent(value, digits = 1) {
  return value == null ? DASH : `${(100 * value).toFixed(digits)}%`;
}

export function figure(value) {
  if (value == null) return DASH;
  const size = Math.abs(value);
  if (size >= 1e6) return value.toExponential(1);
  if (size >= 100) return whole.format(value);
  if (size >= 10) return value.toFixed(1);
  if (size >= 0.1 || size === 0) return value.toFixed(2);
  return size >= 0.001 ? value.toFixed(4) : value.toExponential(1);
}

export function duration(seconds) {
  if (seconds == null) return DASH;
  for (const [size, unit] of [[86400, "d"], [3600, "h"], [60, "min"]]) {
    if (seconds >= 2 * size) return `${figure(seconds / size).replace(/\.0+$/, "")} ${unit}`;
  }
  if (seconds >= 10) return `${Math.round(seconds)} s`;
  if (seconds <= 0) return "0 s";
  return seconds < 0.95 ? `${Math.max(Math.round(1000 * seconds), 1)} ms` : `${seconds.toFixed(1)} s`;
}

// Whole units: for an age that counts up, where a changing fraction would only be noise.
export function age(seconds) {
  if (seconds == null) return DASH;
  const [size, unit] = [[86400, "d"], [3600, "h"], [60, "min"]].find(([size]) => seconds >= 2 * size) ?? [1, "s"];
  return `${Math.max(Math.floor(seconds / size), 0)} ${unit}`;
}

// How long ago that was, in words.
export function ago(seconds) {
  return seconds < 1 ? "just now" : `${age(seconds)} ago`;
}

export function bytes(value) {
  if (value == null) return DASH;
  const place = value < 1 ? 0 : Math.min(Math.floor(Math.log10(value) / 3), 5);
  const scaled = value / 1000 ** place;
  return `${place === 0 || scaled >= 100 ? Math.round(scaled) : scaled.toPrecision(scaled >= 10 ? 3 : 2)} ${["B", "kB", "MB", "GB", "TB", "PB"][place]}`;
}

export function some(number, noun) {
  return `${count(number)} ${noun}${number === 1 ? "" : "s"}`;
}

// The time of day, and the day where that is not the one of `now`.
export function clock(seconds, now = seconds) {
  const [then, today] = [new Date(1000 * seconds), new Date(1000 * now)];
  return `${then.toDateString() === today.toDateString() ? "" : `${day(seconds)}, `}${then.toLocaleTimeString("en-GB")}`;
}

export function day(seconds) {
  return new Date(1000 * seconds).toLocaleDateString("en-GB", { day: "numeric", month: "short" });
}

// A finished run as a film: play and pause, where in it, how fast, and the way to the next thing that happened. All of the dashboard
// shows the moment that the slider stands at.

import { html, useEffect, useRef, useState } from "./html.js";
import { duration } from "./format.js";
import { store, useSelect } from "./store.js";
import { Choice } from "./ui.js";

const SPEEDS = [[1, "1×"], [10, "10×"], [60, "60×"], [300, "300×"]];
const TICK = 250; // milliseconds between two positions of the slider, as often as views come
const REST = 180; // milliseconds that a slider rests before the dashboard goes there
const STEPS = 1000; // of the arrow keys, unless that is less than half a second
const ARROWS = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1 };
const MARKS = 200; // ticks under the slider

export function Replay() {
  const span = useSelect((state) => state.replay);
  const [asked] = useState(store.speed || 1); // of `swarm replay --speed`
  const [speed, setSpeed] = useState(asked); // the chosen one; the store's is 0 while it stands
  const [wanted, setWanted] = useState(null); // {at, served}: where the slider is held, or what the dashboard showed when it was let go
  const rest = useRef(0);
  const served = useSelect((state) => state.served);
  const lines = useLines(span);
  useClock();
  if (!span) return null;
  const within = (at) => Math.min(Math.max(at, span.first), span.last);
  const waits = wanted !== null && (wanted.served === undefined || wanted.served === served);
  const here = waits ? wanted.at : within(store.now());
  const ended = here >= span.last;
  const playing = store.speed > 0 && !ended;
  const go = (at, pace = playing ? speed : 0) => {
    clearTimeout(rest.current);
    setWanted({ at: within(at), served });
    store.play(within(at), pace);
  };
  const slide = (at) => {
    setWanted({ at });
    clearTimeout(rest.current);
    rest.current = setTimeout(() => go(at), REST);
  };
  const press = (event) => { // a step of the slider itself would leave its end out of reach
    if (!ARROWS[event.key]) return;
    event.preventDefault();
    slide(within(here + ARROWS[event.key] * Math.max((span.last - span.first) / STEPS, 0.5)));
  };
  const pace = (chosen) => {
    setSpeed(chosen);
    if (playing) go(here, chosen);
  };
  const speeds = SPEEDS.some(([each]) => each === asked) ? SPEEDS : [...SPEEDS, [asked, `${asked}×`]].sort(([a], [b]) => a - b);
  const next = lines.find(({ at }) => at > here + 0.5);
  const before = lines.findLast(({ at }) => at < here - 0.5);
  return html`<section id="replay" class="card replay" aria-label="Replay">
    <button type="button" class="button replay-play" onClick=${() => go(ended ? span.first : here, playing ? 0 : speed)}>
      <span class="mark" aria-hidden="true">${playing ? "‖" : ended ? "↺" : "▶"}</span>${playing ? "Pause" : ended ? "From the start" : "Play"}</button>
    <div class="replay-track">
      <input type="range" id="replay-at" aria-label="Time in the journal" min=${span.first} max=${span.last}
        step="any" value=${here} aria-valuetext=${`${moment(here)}, ${duration(here - span.first)} after the start`}
        onKeyDown=${press} onInput=${(event) => slide(Number(event.target.value))} />
      <${Marks} lines=${lines} span=${span} />
    </div>
    <p class="replay-clock"><output for="replay-at" class="value" aria-live="off">${moment(here)}</output>${" "}
      <span class="muted small">${duration(here - span.first)}<span class="c-mid"> of ${duration(span.last - span.first)}</span></span></p>
    <div class="replay-tools">
      <button type="button" class="button" aria-disabled=${!before} onClick=${() => before && go(before.at)}>
        <span aria-hidden="true">◂</span><span class="word"> Event<span class="sr"> before</span></span></button>
      <button type="button" class="button" aria-disabled=${!next} onClick=${() => next && go(next.at)}>
        <span class="word"><span class="sr">Next </span>Event </span><span aria-hidden="true">▸</span></button>
      <${Choice} label="Speed of the replay" value=${speed} options=${speeds} onChange=${pace} />
    </div>
  </section>`;
}

// Draws again a few times a second: the clock goes on between two views.
function useClock() {
  const [, redraw] = useState(0);
  useEffect(() => {
    const tick = setInterval(() => redraw((turn) => turn + 1), TICK);
    return () => clearInterval(tick);
  }, []);
}

// Warnings and errors of the whole journal in the order of time; all lines when there are none.
function useLines(span) {
  const [lines, set] = useState([]);
  useEffect(() => {
    if (!span) return;
    fetch(`api/events?at=${span.last}`).then((answer) => (answer.ok ? answer.json() : { events: [] })).then(({ events }) => {
      const grave = events.filter(({ level }) => level !== "info");
      set((grave.length ? grave : events).sort((a, b) => a.at - b.at));
    }, () => set([])); // without them the slider works as well
  }, [span]);
  return lines;
}

function Marks({ lines, span }) {
  const width = Math.max(span.last - span.first, 1);
  const path = (level) => lines.filter((line) => line.level === level).slice(-MARKS)
    .map(({ at }) => `M${((1000 * (at - span.first)) / width).toFixed(1)} ${level === "error" ? 0 : 3}V8`).join("");
  return html`<svg class="replay-marks" viewBox="0 0 1000 8" preserveAspectRatio="none" aria-hidden="true">
    ${["info", "warning", "error"].map((level) => html`<path key=${level} class=${level} d=${path(level)} />`)}
  </svg>`;
}

function moment(at) {
  return new Date(1000 * at).toLocaleString("en-GB", { day: "2-digit", month: "short", hour: "2-digit", minute: "2-digit", second: "2-digit" });
}

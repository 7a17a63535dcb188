// Parts that all sections share. Words from peers enter as text children only; a state is always a symbol and a word.

import { Component, h, html, useEffect, useRef, useState } from "./html.js";
import { ago } from "./format.js";
import { LONGEST, store, useTick } from "./store.js";

const SLOW = 5000; // milliseconds after which a person wonders why nothing comes

// Where the age of a sampler's groups comes from: [name in its claims, word], in the order of a group's way.
export const CAUSES = [
  ["download", "policy download"], ["queue", "queue"], ["generation", "generation"], ["upload", "upload"], ["inbox", "learner inbox"],
];

// A component that draws again only when a prop changed (by identity).
export function memo(draw) {
  return class extends Component {
    shouldComponentUpdate(next) {
      const names = Object.keys(next);
      return names.length !== Object.keys(this.props).length || names.some((name) => next[name] !== this.props[name]);
    }

    render(props) {
      return h(draw, props);
    }
  };
}

// A landmark with a heading. `note` explains in a line, `tools` are controls at the heading's right.
export function Section({ id, title, note, tools, children }) {
  return html`<section id=${id} class="section" aria-labelledby=${`${id}-title`}>
    <div class="section-head">
      <h2 id=${`${id}-title`}>${title}</h2>
      ${note && html`<p class="muted small">${note}</p>`}
      ${tools && html`<div class="tools">${tools}</div>`}
    </div>
    ${children}
  </section>`;
}

export function Card({ title, value, note, kind = "", children }) {
  return html`<div class=${`card ${kind}`}>
    ${title && html`<div class="card-head"><h3>${title}</h3>${value != null && html`<span class="value">${value}</span>`}</div>`}
    ${note != null && html`<p class="muted small note">${note}</p>`}
    ${children}
  </div>`;
}

// A figure with its name above and a line of context below, which keep their height while they are empty.
export function Figure({ id, label, value, note, noteId, claimed }) {
  return html`<div class="figure">
    <dt>${label}</dt>
    <dd class="figure-value" id=${id}>${claimed ? html`<${Claimed}>${value}<//>` : value}</dd>
    <dd class="figure-note muted" id=${noteId}>${note || "\u00a0"}</dd>
  </div>`;
}

const MARKS = {
  ok: "✓", info: "·", warning: "▲", error: "✕", alive: "●", lost: "◌", left: "–", waiting: "◌", live: "●", paused: "‖",
};

// A state: symbol and word. `word` is what the reader sees; with `quiet` it is for screen readers only.
export function Mark({ kind, word, quiet = false }) {
  return html`<span class=${`mark-word is-${kind}`}><span class="mark" aria-hidden="true">${MARKS[kind] ?? "·"}</span>${
    word && html`<span class=${quiet ? "sr" : "word"}>${word}</span>`
  }</span>`;
}

export function Empty({ children, id }) {
  return html`<p class="empty muted" id=${id}>${children}</p>`;
}

// A figure that only the peer itself reports; `Legend` explains the dotted line.
export function Claimed({ children }) {
  return html`<span class="claimed" title="claimed: only the peer itself says so">${children}<span class="sr"> (claimed)</span></span>`;
}

export function ClaimedLegend() {
  return html`<span class="muted small"><span class="claimed">dotted</span> is claimed: only the peer itself says so.</span>`;
}

// "3 s ago", counted on each second.
export function Age({ at, prefix = "" }) {
  useTick();
  return at == null ? "–" : `${prefix}${ago(store.now() - at)}`;
}

// A sentence in which what stands in backquotes is for typing.
export function Prose({ text }) {
  return text.split("`").map((part, place) => (place % 2 ? html`<code>${part}</code>` : part));
}

// A peer by name; opens its drawer.
export function PeerLink({ id, name }) {
  return html`<button type="button" class="peer-link" title=${id} onClick=${() => store.select(id)}>${name}</button>`;
}

// What the server answers; null where it does not, of which the bar tells. A question ends after a minute, since its way may have
// died without a word; whoever asks may end it before.
export async function answered(path, question = new AbortController()) {
  const late = setTimeout(() => question.abort(), LONGEST);
  const asked = fetch(store.url(path), { signal: question.signal });
  const said = await asked.then((answer) => (answer.ok ? answer.json() : null)).catch(() => null);
  clearTimeout(late);
  return said;
}

// Gives `take` what is answered, now and again after each pause (milliseconds) while somebody sees the dashboard; one question at a time.
// Returns what ends it.
export function poll(path, pause, take) {
  let [stopped, question] = [false, null];
  const ask = async () => {
    question = new AbortController();
    const said = await answered(path, question);
    question = null;
    if (said && !stopped) take(said);
  };
  ask();
  const timer = setInterval(() => document.hidden || question || ask(), pause);
  return () => {
    stopped = true;
    clearInterval(timer);
    const last = question;
    setTimeout(() => last?.abort(), SLOW); // what comes at once is not broken off
  };
}

// In place of an answer that did not come yet; after a while it says what may be in its way.
export function Awaited() {
  const since = useRef(performance.now());
  useTick();
  if (performance.now() - since.current < SLOW) return html`<p class="muted small">…</p>`;
  return html`<p class="muted small" role="status">No answer yet. A browser has six connections for all windows of a dashboard: close some where there are
    more than five.</p>`;
}

// One of a few: radio buttons that look like a switch. options: [[value, word], ...].
export function Choice({ label, value, options, onChange }) {
  return html`<fieldset class="choice"><legend class="sr">${label}</legend>${options.map(
    ([key, word]) => html`<label key=${key} class=${key === value ? "on" : ""}>
      <input type="radio" class="sr" name=${`choice-${label}`} value=${key} checked=${key === value} onChange=${() => onChange(key)} />${word}
    </label>`,
  )}</fieldset>`;
}

// [reference, rows]: rows keep their order while the focus is on one of them; who is new comes at the end then.
export function useKeptOrder(rows, key) {
  const [node, known] = [useRef(null), useRef([])];
  const ids = rows.map(key);
  known.current = node.current?.matches(":focus-within") ? settled(known.current, ids) : ids;
  const byId = new Map(rows.map((row) => [key(row), row]));
  return [node, known.current.map((id) => byId.get(id))];
}

// `ids` in the order of `known`, what is new at the end.
export function settled(known, ids) {
  const [before, now] = [new Set(known), new Set(ids)];
  return [...known.filter((id) => now.has(id)), ...ids.filter((id) => !before.has(id))];
}

// [reference, near]: whether the element is in or near the viewport.
export function useNear(margin = "300px") {
  const node = useRef(null);
  const [near, turn] = useState(false);
  useEffect(() => {
    const watch = new IntersectionObserver((entries) => turn(entries.at(-1).isIntersecting), { rootMargin: margin });
    watch.observe(node.current);
    return () => watch.disconnect();
  }, []);
  return [node, near];
}

// Width of an element in CSS pixels; 0 before it is laid out.
export function useWidth(node) {
  const [width, set] = useState(0);
  useEffect(() => {
    const watch = new ResizeObserver(([entry]) => set(Math.floor(entry.contentRect.width)));
    watch.observe(node.current);
    return () => watch.disconnect();
  }, []);
  return width;
}

// Whether a media query holds; draws again when that changes.
export function useMedia(words) {
  const query = matchMedia(words);
  const [holds, set] = useState(query.matches);
  useEffect(() => {
    const turn = () => set(query.matches);
    query.addEventListener("change", turn);
    return () => query.removeEventListener("change", turn);
  }, []);
  return holds;
}

// Dark or light as the system chose, for canvases. A print is light, also of what was drawn for a dark screen: `data-drawn` of a
// canvas' parent says for which, and style.css gives that a ground.
export function useTheme() {
  return useMedia("(prefers-color-scheme: dark)") ? "dark" : "light";
}

// The value of a colour of style.css, for canvases.
export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

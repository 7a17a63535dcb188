// What the dashboard knows: views from /stream merged into one snapshot, and hooks that read it.
//
// A view tells what changed; a full one replaces everything. Every slice of the snapshot keeps its identity while its content
// stays the same, so `useSelect` and memoized components do nothing when nothing changed. Readers are woken one per task: a busy
// swarm makes many short tasks instead of one long one, and a place far from the viewport is woken once a second only.
// In a replay every dashboard stands at a moment of its own: `play` says which, and `now` and `url` follow.
// Not handled here: how anything looks (ui.js and the sections).

import { Role } from "./protocol.js";
import { createContext, useContext, useEffect, useReducer, useRef } from "./html.js";

export const QUIET = 10; // seconds without news before the dashboard says so
const AWAY = 1000; // milliseconds between two renders of a place that nobody sees
const AGAIN = 5000; // milliseconds before a refused stream is asked for again
const SOON = 1000; // milliseconds before a broken replay goes on
const REST = 15_000; // milliseconds that nobody sees this dashboard before it gives its stream up: longer than a glance elsewhere
const GLANCE = 30_000; // milliseconds between two looks of a dashboard without a stream at the whole, for its title
export const LONGEST = 60_000; // milliseconds that a stream has to say something, and an answer to come, at most: a large one over a slow line
const FULL = "too many dashboards"; // how the server begins its refusal; a proxy's 503 says something else
const FASTEST = 1000; // journal seconds per second that the server plays at most
const LINES = 500; // sentences kept; the server keeps fewer
const SAMPLES = 64; // groups kept for reading
const RELEASES = 256; // releases kept

const EMPTY = Object.freeze({
  run: null, head: null, condition: null, problems: [], round: { learners: [], last_members: [] }, peers: new Map(), verdicts: {}, tokens: {},
  lag: { versions: [], seconds: [] }, agreement: { same: 0, different: 0, digests: [], learners: 0, version: null }, events: [],
  series: new Map(), releases: [], flows: [], traffic: { total: {}, rate: {} }, samples: [], replay: null,
  revision: 0, last: 0, served: 0, quiet: 0, selected: null, opened: 0,
});
const WHOLE = ["run", "head", "condition", "problems", "round", "verdicts", "tokens", "lag", "agreement", "flows", "traffic", "replay"];

// Of `swarm replay --speed`; null for none, and for what is no speed.
const WANTED = ((word) => (word && Number.isFinite(Number(word)) ? Math.min(Math.max(Number(word), 0), FASTEST) : null))(
  new URLSearchParams(location.search).get("speed"),
);

let snapshot = EMPTY;
let came = performance.now(); // when the newest view came
let stream = null;
let opened = 0; // when it was asked for
let patience = 1000 * QUIET; // milliseconds without a view until it is asked for anew: longer with each try
let refused = false; // the server has no seat for this dashboard
let rest = 0; // timer of a dashboard that nobody sees
let asleep = false; // it has given its stream up
let waking = false; // it has asked for a stream again, and no view came yet
let live = false; // the server has no other moments, whatever the address of this dashboard says
let place = null; // in a replay: {at, speed} that this dashboard asked for; speed 0 is a pause
const readers = new Set();
const waiting = new Set();

export const store = {
  // The newest snapshot; see `useSwarm`.
  get state() {
    return snapshot;
  },

  // A path of the server with `at` when this is a replay: the moment that the dashboard shows.
  url(path) {
    if (!snapshot.replay) return path;
    return `${path}${path.includes("?") ? "&" : "?"}at=${store.now()}`;
  },

  // Unix seconds of the server, or of the journal in a replay; goes on between two views.
  now() {
    const gone = (performance.now() - came) / 1000;
    if (!snapshot.replay) return snapshot.served + gone;
    return Math.min(snapshot.served + gone * store.speed, Math.max(snapshot.replay.last, snapshot.served));
  },

  // In a replay: journal seconds per second; 0 while it stands still.
  get speed() {
    return place ? place.speed : WANTED ?? 1;
  },

  // In a replay: show the journal from `at` on, `speed` times as fast; 0 shows that moment and stands still.
  play(at, speed) {
    place = { at, speed };
    open();
  },

  // The peer whose drawer is open, or null.
  select(id) {
    if (snapshot.selected === id) return;
    if (snapshot.selected === null) store.opener = document.activeElement; // now: until the drawer is drawn, rows may have moved
    snapshot = { ...snapshot, selected: id };
    wake();
  },

  // How the dashboard hears: state is connecting, mute (nothing came yet), live, silent (the server speaks, the swarm does not), lost (the server is
  // silent), full (the server has no seat), and in a replay replay or paused; seconds since anything was heard.
  link() {
    const gap = silence();
    if (refused) return { state: "full", seconds: gap + snapshot.quiet };
    if (asleep || waking || (!snapshot.run && gap < QUIET)) return { state: "connecting", seconds: gap };
    if (!snapshot.run) return { state: "mute", seconds: gap };
    if (snapshot.replay && gap < QUIET) return { state: store.speed === 0 ? "paused" : "replay", seconds: 0 };
    const seconds = gap + (snapshot.condition?.kind === "waiting" ? 0 : snapshot.quiet); // nobody is missed yet
    return { state: seconds < QUIET ? "live" : gap >= QUIET ? "lost" : "silent", seconds };
  },

  subscribe(reader) {
    readers.add(reader);
    return () => readers.delete(reader);
  },
};

const silence = () => (performance.now() - came) / 1000; // seconds without a view

// lost, left or alive by what was heard of a peer until now; while the server is silent, until it fell silent.
export function statusOf(peer) {
  if (peer.gone) return peer.gone;
  const now = silence() < QUIET ? store.now() : snapshot.served;
  return peer.beating && now - peer.heard > snapshot.run.patience * peer.slower ? "lost" : "alive";
}

// Versions that a peer is behind the newest release now; null for roles without a policy.
export function lagOf(peer) {
  return peer.version == null ? null : Math.max(snapshot.head.version - peer.version, 0);
}

// Seconds since the version that a peer uses was released; null when that is not known.
export function ageOf(peer) {
  return peer.released == null ? null : Math.max(store.now() - peer.released, 0);
}

// A sampler's part of all admitted groups, a learner's of all trained ones, to a thousandth; null before there are any.
export function shareOf({ role, admitted, trained }) {
  const mine = { [Role.SAMPLER]: [admitted, snapshot.verdicts.admit], [Role.LEARNER]: [trained, snapshot.head.trained] }[role];
  return mine?.[1] ? Math.round(1000 * Math.min(mine[0] / mine[1], 1)) / 1000 : null;
}

// --- merging ---

function take(view) {
  came = performance.now();
  refused = waking = false;
  patience = 1000 * QUIET;
  const base = view.full ? { ...EMPTY, selected: snapshot.selected, opened: snapshot.opened } : snapshot;
  const next = { ...base, revision: view.revision, last: view.last, served: view.now, quiet: view.quiet };
  for (const name of WHOLE) {
    const value = view[name] ?? base[name]; // null: as it was
    next[name] = same(snapshot[name], value) ? snapshot[name] : value;
  }
  next.peers = rows(base.peers, view.peers, view.gone);
  next.events = newest(base.events, view.events, "id", LINES);
  next.samples = newest(base.samples, view.samples, "id", SAMPLES);
  next.releases = newest(base.releases, view.releases, "version", RELEASES);
  if (view.releases.length) next.releases.sort((a, b) => b.version - a.version);
  next.series = curves(base.series, view.series);
  snapshot = next;
  wake();
}

function rows(known, changed, gone) {
  if (!changed.length && !gone.length) return known;
  const next = new Map(known);
  for (const id of gone) next.delete(id);
  for (const peer of changed) next.set(peer.id, peer);
  return next;
}

// `changed` comes oldest first; what is known under the same key is replaced.
function newest(known, changed, key, most) {
  if (!changed.length) return known;
  const fresh = new Set(changed.map((entry) => entry[key]));
  return [...changed].reverse().concat(known.filter((entry) => !fresh.has(entry[key]))).slice(0, most);
}

function curves(known, changed) {
  const names = Object.keys(changed);
  if (!names.length) return known;
  const next = new Map(known);
  for (const name of names) if (changed[name].length) next.set(name, points(known.get(name) ?? [], changed[name]));
  return next;
}

function points(known, changed) {
  const next = known.slice();
  for (const point of changed) {
    let spot = next.length;
    while (spot > 0 && next[spot - 1][0] > point[0]) spot--;
    if (spot > 0 && next[spot - 1][0] === point[0]) next[spot - 1] = point;
    else next.splice(spot, 0, point);
  }
  return next;
}

// Deep equality of JSON values; maps are equal only to themselves, because a changed one is another.
function same(a, b) {
  if (a === b) return true;
  if (typeof a !== "object" || typeof b !== "object" || !a || !b || a instanceof Map || b instanceof Map) return false;
  if (Array.isArray(a) !== Array.isArray(b)) return false;
  const names = Object.keys(a);
  return names.length === Object.keys(b).length && names.every((name) => same(a[name], b[name]));
}

// --- waking readers ---

const channel = new MessageChannel();
channel.port1.onmessage = () => {
  const [reader] = waiting;
  waiting.delete(reader);
  if (readers.has(reader)) reader();
  if (waiting.size) channel.port2.postMessage(null);
};

function wake() {
  const idle = waiting.size === 0;
  for (const reader of readers) waiting.add(reader);
  if (idle && waiting.size) channel.port2.postMessage(null);
}

// --- the stream ---

function close() {
  stream?.close();
  stream = null;
}

function open() {
  close();
  opened = performance.now();
  const first = WANTED === null || live ? "stream" : `stream?at=0&speed=${WANTED}`; // else a replay opens on the whole run
  const mine = new EventSource(place ? `stream?at=${place.at}&speed=${place.speed}` : first);
  stream = mine;
  mine.addEventListener("view", (message) => {
    const view = JSON.parse(message.data);
    if (view.replay && place === null) place = { at: view.now, speed: WANTED ?? 1 };
    take(view);
  });
  mine.addEventListener("open", () => {
    snapshot = { ...snapshot, opened: snapshot.opened + 1 }; // maybe by another run's server
    wake();
  });
  mine.addEventListener("error", () => {
    if (mine !== stream) return;
    if (mine.readyState === EventSource.CLOSED) ask(mine);
    else if (place) resume();
  });
}

// A broken stream asks again by itself; that of a replay would begin where it began, so it is opened anew where it broke.
function resume() {
  close();
  place.at = snapshot.served;
  setTimeout(() => stream || asleep || open(), SOON);
}

// The server shows a live swarm, where this dashboard asked for a moment of a replay.
function begin() {
  [live, place] = [true, null];
  open();
}

// An EventSource that was refused does not say why: ask with fetch, which tells the status, and try again later.
async function ask(closed) {
  const stop = new AbortController();
  let full;
  try {
    const answer = await fetch(closed.url, { signal: stop.signal });
    if (answer.status === 422 && closed === stream) return begin();
    full = answer.status === 503 && (await answer.json()).detail.startsWith(FULL);
  } catch {
    full = false; // nobody answers, or a proxy alone: the dashboard says that it has lost its peer
  }
  stop.abort();
  if (closed !== stream) return;
  refused = full;
  wake();
  setTimeout(() => closed === stream && open(), AGAIN);
}

// A path that died without a word (a router forgot it, the machine slept) gives a stream no error: the server says something every
// other second, so a stream that says nothing is asked for anew.
function revive(least) {
  const now = performance.now();
  if (asleep || silence() < QUIET || now - opened < least) return;
  waking = false;
  patience = Math.min(2 * patience, LONGEST);
  opened = now;
  if (place) resume();
  else open();
}

// A browser keeps six connections to an address for all of its tabs, and a stream holds one: the seventh tab would stay blank, and the
// six would get no other answer. So a tab that nobody sees, or that Back may show again, gives its stream up.
function sleep() {
  clearTimeout(rest);
  asleep = true;
  close();
  rest = setTimeout(glance, GLANCE);
}

async function glance() {
  clearTimeout(rest);
  rest = setTimeout(glance, GLANCE);
  const answer = await fetch(store.url("api/state"), { signal: AbortSignal.timeout(GLANCE) }).catch(() => null);
  const view = answer?.ok ? await answer.json().catch(() => null) : null;
  if (asleep && view) take(view);
}

function attend() {
  clearTimeout(rest);
  if (document.hidden) {
    rest = setTimeout(asleep ? glance : sleep, REST);
  } else if (asleep) {
    [asleep, waking, patience] = [false, true, 1000 * QUIET];
    if (place) place.at = store.now(); // a film goes on also while nobody sees it
    open();
  } else revive(AGAIN);
}

export function start() {
  if (document.hidden) {
    sleep();
    glance();
  } else open();
  setInterval(() => revive(patience), 1000);
  addEventListener("online", () => revive(AGAIN));
  document.addEventListener("visibilitychange", attend);
  addEventListener("pagehide", sleep);
  addEventListener("pageshow", attend);
}

// --- hooks ---

// True inside a place that is in or near the viewport; app.js provides it.
export const Near = createContext(true);

function useWake(changed) {
  const [, redraw] = useReducer((turn) => turn + 1, 0);
  const near = useContext(Near);
  const mine = useRef({ near, drawn: 0, timer: 0 });
  const check = useRef(changed);
  check.current = changed;
  useEffect(() => {
    const { current } = mine;
    current.near = near;
    const draw = () => {
      current.timer = 0;
      current.drawn = performance.now();
      if (check.current()) redraw();
    };
    if (near && current.timer) {
      clearTimeout(current.timer);
      draw();
    }
    const leave = store.subscribe(() => {
      if (current.timer) return;
      const wait = current.near ? 0 : current.drawn + AWAY - performance.now();
      if (wait > 0) current.timer = setTimeout(draw, wait);
      else draw();
    });
    draw();
    return () => {
      leave();
      clearTimeout(current.timer);
      current.timer = 0;
    };
  }, [near]);
}

// The snapshot; draws the component again at each view. `now()` is the server's time, `live` and `quiet` how the dashboard hears.
export function useSwarm() {
  const seen = useRef(null);
  useWake(() => seen.current !== snapshot);
  seen.current = snapshot;
  const { state, seconds } = store.link();
  return { ...snapshot, now: store.now, live: state === "live", quiet: seconds };
}

// What `selector` makes of the snapshot; draws again only when that is another value (deeply).
export function useSelect(selector) {
  const seen = useRef(null);
  const choose = useRef(selector);
  choose.current = selector;
  useWake(() => !same(seen.current, choose.current(snapshot)));
  const value = selector(snapshot);
  if (!same(seen.current, value)) seen.current = value;
  return seen.current;
}

const ticking = new Set();
setInterval(() => {
  if (!document.hidden) for (const tick of ticking) tick();
}, 1000);
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) for (const tick of ticking) tick();
});

// Draws the component again each second: for ages and silences.
export function useTick() {
  const [, redraw] = useReducer((turn) => turn + 1, 0);
  useEffect(() => {
    ticking.add(redraw);
    return () => ticking.delete(redraw);
  }, []);
}

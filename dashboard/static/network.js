// Which peers exchange data: the ring with its flows, bytes by purpose, the biggest flows as a table, and how each release spread.
//
// What is drawn follows the store at most once a second; the shapes on the lines move only while somebody can see them and wants
// motion. The table of flows says in words what the ring shows.

import { html, useEffect, useRef, useState } from "./html.js";
import { bytes, count, duration, some } from "./format.js";
import { PURPOSES, at, drawMoving, drawStill, fit, scene } from "./ring.js";
import { Role, ROLES } from "./protocol.js";
import { statusOf, store, useSwarm } from "./store.js";
import { Age, colour, Empty, Mark, memo, PeerLink, Section, useKeptOrder, useMedia, useNear, useTheme, useWidth } from "./ui.js";

const CALM = 1000; // milliseconds between two drawings
const FRAME = 40; // milliseconds between two positions of what moves: smooth to the eye at half the work
const FLOWS = 8; // rows of the biggest flows
const RELEASES = 12;
const SHAPES = { rollouts: "M6 2a3 3 0 1 1 0 6a3 3 0 1 1 0-6z", weights: "M3 2h6v6h-6z", gradients: "M6 1l4 7h-8z", other: "M6 3.5a1.5 1.5 0 1 1 0 3a1.5 1.5 0 1 1 0-3z" };
const ROLE_SHAPES = {
  [Role.LEARNER]: "M6 0a5 5 0 1 1 0 10a5 5 0 1 1 0-10z", [Role.SAMPLER]: "M6 2a3 3 0 1 1 0 6a3 3 0 1 1 0-6z", [Role.EVALUATOR]: "M3 2h6v6h-6z",
  [Role.SEED]: "M6 1l4 4l-4 4l-4-4z", [Role.OBSERVER]: "M6 1l4 7h-8z", [Role.AUDITOR]: "M6 0.5l4 2.25v4.5l-4 2.25l-4-2.25v-4.5z",
};

export function Network() {
  const { flows, peers, traffic, releases } = useCalm();
  return html`<${Section} id="network" title="Network" note="bytes as their receivers counted them">
    <div class="network">
      <div class="card ring-card">${peers.size ? html`<${Ring} peers=${peers} flows=${flows} />` : html`<${Empty}>No peer was heard yet.<//>`}</div>
      <div class="network-side">
        <div class="card"><${Traffic} traffic=${traffic} /></div>
        <div class="card"><${Biggest} flows=${flows} peers=${peers} /></div>
      </div>
    </div>
    <div class="card releases-card"><${Releases} releases=${releases} peers=${peers} /></div>
  <//>`;
}

// The snapshot as it was at most a second ago: the same object until then, so that nothing is drawn in between.
function useCalm() {
  const newest = useSwarm();
  const held = useRef({ at: -CALM, state: newest });
  if (performance.now() - held.current.at >= CALM) held.current = { at: performance.now(), state: newest };
  return held.current.state;
}

const Ring = memo(function Ring({ peers, flows }) {
  const box = useRef(null);
  const below = useRef(null);
  const above = useRef(null);
  const drawn = useRef(null);
  const [watch, visible] = useNear("0px");
  const [chosen, choose] = useState(null);
  const width = useWidth(box);
  const theme = useTheme();
  const still = useMedia("(prefers-reduced-motion: reduce)");
  const order = [...peers.values()].filter(({ proven }) => proven) // a crowd of strangers would hide those that take part
    .map((peer) => ({ id: peer.id, name: peer.name, role: peer.role, status: statusOf(peer) }))
    .sort((a, b) => ROLES.indexOf(a.role) - ROLES.indexOf(b.role) || (a.name < b.name ? -1 : 1));
  useEffect(() => {
    if (!width) return;
    const height = Math.round(Math.max(Math.min(0.8 * width, 520), 300));
    const colours = palette();
    drawn.current = { view: scene(order, flows, width, height), colours };
    fit(below.current, width, height);
    fit(above.current, width, height);
    drawStill(below.current, drawn.current.view, colours, chosen);
    box.current.dataset.drawn = theme;
    if (still || !visible) drawMoving(above.current, drawn.current.view, colours, chosen, 0, true);
  }, [peers, flows, width, theme, chosen, still, visible]);
  useEffect(() => {
    if (still || !visible) return;
    let [request, last] = [0, 0];
    const frame = (time) => {
      request = requestAnimationFrame(frame);
      if (time - last < FRAME || !drawn.current) return;
      last = time;
      drawMoving(above.current, drawn.current.view, drawn.current.colours, chosen, time, false);
    };
    request = requestAnimationFrame(frame);
    return () => cancelAnimationFrame(request);
  }, [still, visible, chosen]);
  const point = (event) => {
    const edge = below.current.getBoundingClientRect();
    if (drawn.current) choose(at(drawn.current.view, event.clientX - edge.left, event.clientY - edge.top));
  };
  const press = (event) => {
    const ids = order.filter(({ status }) => status !== "left").map(({ id }) => id);
    const here = ids.indexOf(chosen);
    const next = { ArrowRight: here + 1, ArrowDown: here + 1, ArrowLeft: here - 1, ArrowUp: here - 1, Home: 0, End: -1 }[event.key];
    if (event.key === "Enter" && chosen) store.select(chosen);
    else if (next !== undefined && ids.length) choose(ids.at(here < 0 && next < -1 ? -1 : next % ids.length));
    else return;
    event.preventDefault();
  };
  return html`<div ref=${watch}>
    <div ref=${box} class="ring" tabindex="0" role="application" aria-label=${`Ring of ${some(order.length, "peer")}: arrow keys go from peer to peer, Enter opens one`}
      aria-describedby="ring-words" onPointerMove=${point} onPointerLeave=${() => choose(null)} onBlur=${() => choose(null)} onKeyDown=${press}
      onClick=${() => chosen && store.select(chosen)}>
      <canvas ref=${below}></canvas><canvas ref=${above} class="above"></canvas>
    </div>
    <${Pointed} id=${chosen} peers=${peers} flows=${flows} />
    <ul class="ring-legend small muted">${ROLES.filter((role) => order.some((peer) => peer.role === role)).map(
      (role) => html`<li key=${role}><svg viewBox="0 0 12 10" class=${`role-${role}`} aria-hidden="true"><path d=${ROLE_SHAPES[role]} /></svg>${role}</li>`)}
      <li><svg viewBox="0 0 12 10" class="role-lost" aria-hidden="true"><circle cx="6" cy="5" r="3.4" /></svg>lost</li>
      <li><svg viewBox="0 0 22 10" class="way" aria-hidden="true"><path d="M1 5h20" /></svg>direct</li>
      <li><svg viewBox="0 0 22 10" class="way relayed" aria-hidden="true"><path d="M1 5h20" /></svg>relayed</li></ul>
  </div>`;
});

function palette() {
  const names = [...PURPOSES, "card", "ink", "muted", "accent", "warning"];
  const family = getComputedStyle(document.documentElement).fontFamily;
  return { ...Object.fromEntries(names.map((name) => [name, colour(name)])), font: `12px ${family}` };
}

// The peer that is pointed at, in words; keeps its place while there is none.
function Pointed({ id, peers, flows }) {
  const peer = id && peers.get(id);
  if (!peer) return html`<p class="ring-words muted small" id="ring-words" role="status">Point at a peer, or use the arrow keys, to see its flows.</p>`;
  const [sent, came] = [sums(flows.filter(({ source }) => source === id)), sums(flows.filter(({ target }) => target === id))];
  return html`<p class="ring-words small" id="ring-words" role="status"><strong>${peer.name}</strong>, ${peer.role}, ${statusOf(peer)}.${" "}
    ${sent && `Sends ${sent}.`}${sent && came && " "}${came && `Receives ${came}.`}${!sent && !came && "No flow now."}</p>`;
}

function sums(flows) {
  return PURPOSES.map((purpose) => {
    const mine = flows.filter((flow) => flow.purpose === purpose);
    const rate = mine.reduce((sum, flow) => sum + flow.rate, 0);
    const relayed = mine.filter((flow) => flow.relayed).length;
    return mine.length && `${purpose} ${bytes(rate)}/s${relayed ? ` (${relayed === mine.length ? "relayed" : `${relayed} of ${mine.length} relayed`})` : ""}`;
  }).filter(Boolean).join(", ");
}

const Purpose = ({ name }) => html`<span class=${`purpose is-${name}`}>
  <svg viewBox="0 0 12 10" aria-hidden="true"><path d=${SHAPES[name] ?? SHAPES.other} /></svg><span class="word">${name}</span></span>`;

const Traffic = memo(function Traffic({ traffic: { total, rate } }) {
  const names = [...PURPOSES, ...Object.keys(total).filter((name) => !PURPOSES.includes(name))].filter((name) => name in total || name in rate);
  if (!names.length) return html`<h3>Bytes by purpose</h3><${Empty}>No peer has told of its bytes yet.<//>`;
  const most = Math.max(...names.map((name) => rate[name] ?? 0), 1);
  return html`<table class="list traffic"><caption>Bytes by purpose</caption>
    <thead><tr><th scope="col">Purpose</th><th scope="col" class="number">Now</th><th class="c-bar" aria-hidden="true"></th><th scope="col" class="number">In all</th></tr></thead>
    <tbody>${names.map((name) => html`<tr key=${name}><th scope="row"><${Purpose} name=${name} /></th><td class="number">${bytes(rate[name] ?? 0)}/s</td>
      <td class="c-bar"><svg class=${`bar-line is-${name}`} viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">
        <rect width=${(100 * (rate[name] ?? 0)) / most} height="10" /></svg></td>
      <td class="number">${bytes(total[name] ?? 0)}</td></tr>`)}</tbody></table>`;
});

const Biggest = memo(function Biggest({ flows, peers }) {
  const sorted = [...flows].sort((a, b) => b.rate - a.rate);
  const [list, order] = useKeptOrder(sorted, ({ source, target, purpose }) => source + target + purpose);
  if (!flows.length) return html`<h3>Biggest flows</h3><${Empty}>Nothing flows now.<//>`;
  const shown = order.slice(0, FLOWS);
  const name = (id) => peers.get(id)?.name ?? `${id.slice(0, 10)}…`;
  return html`<table class="list flows"><caption>Biggest flows${flows.length > FLOWS && html` <span class="muted">${FLOWS} of ${count(flows.length)}</span>`}${
    shown.some(({ relayed }) => relayed) && html` <span class="muted">⤳ relayed</span>`}</caption>
    <thead><tr><th scope="col">From</th><th scope="col">To</th><th scope="col">Purpose</th><th scope="col" class="number">Now</th></tr></thead>
    <tbody ref=${list}>${shown.map(({ source, target, purpose, rate, relayed }) => html`<tr key=${source + target + purpose}>
      <td><${PeerLink} id=${source} name=${name(source)} /></td><td><${PeerLink} id=${target} name=${name(target)} /></td>
      <td><${Purpose} name=${purpose} />${relayed && html` <span class="small relayed" title="relayed by a third peer">⤳<span class="sr"> relayed</span></span>`}</td>
      <td class="number">${rate ? `${bytes(rate)}/s` : html`<span class="muted">not told</span>`}</td></tr>`)}</tbody></table>`;
});

// Each release's way to all peers: from the first peer that had it to the last, the middle one marked.
const Releases = memo(function Releases({ releases, peers }) {
  const shown = releases.slice(0, RELEASES);
  if (!shown.length) return html`<h3>How releases spread</h3><${Empty}>No release was seen yet.<//>`;
  const most = Math.max(...shown.map(({ last }) => last ?? 0), 0.1);
  return html`<table class="list releases">
    <caption>How releases spread${" "}
      <span class="muted">seconds from a release, or from a peer's start, until the first, the middle and the last peer had it, or a newer one</span></caption>
    <thead><tr><th scope="col" class="number">Version</th><th scope="col" class="c-mid">Released</th>
      <th scope="col" class="number c-mid">Size</th><th scope="col" class="number c-mid" title="what changed since the version before: whoever has that one fetches no more">Patch</th><th scope="col" class="c-wide">Publisher</th>
      <th scope="col">Have it</th><th scope="col" class="c-spread">Spread, 0 to ${duration(most)}</th>
      <th scope="col" class="number c-mid">First</th><th scope="col" class="number">Median</th><th scope="col" class="number">Last</th></tr></thead>
    <tbody>${shown.map((release) => html`<${Spread} key=${release.version} release=${release} most=${most} publisher=${peers.get(release.publisher)?.name} />`)}</tbody></table>`;
});

const Spread = memo(function Spread({ release, most, publisher }) {
  const { version, released, size, patch, have, of, first, median, last } = release;
  const place = (seconds) => (100 * seconds) / most;
  const all = have >= of;
  return html`<tr><th scope="row" class="number">${count(version)}</th><td class="muted c-mid"><${Age} at=${released} /></td><td class="number c-mid">${bytes(size)}</td>
    <td class="number c-mid">${bytes(patch)}</td>
    <td class="c-wide">${publisher ? html`<${PeerLink} id=${release.publisher} name=${publisher} />` : html`<span class="mono">${release.publisher.slice(0, 12)}…</span>`}</td>
    <td class="have">${of === 0 ? html`<span class="muted">no peer to fetch it</span>`
      : html`<${Mark} kind=${all ? "ok" : have ? "waiting" : "warning"} word=${all ? `all ${count(of)}` : `${count(have)} of ${count(of)}`} />`}</td>
    <td class="c-spread">${first != null && last != null && html`<svg class="spread" viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">
      <path class="track" d="M0 5H100" /><rect class="fill" x=${place(first)} y="2" width=${Math.max(place(last) - place(first), 0.8)} height="6" />${
        median != null && html`<path class="median" d=${`M${place(median)} 0V10`} />`}</svg>`}</td>
    <td class="number c-mid">${duration(first)}</td><td class="number">${duration(median)}</td>
    <td class="number">${all || last == null ? "" : html`<span class="muted c-mid">so far </span>`}${duration(last)}</td></tr>`;
});

// How stale everything is: the map peer × time (heat.js), the ages of what was trained with the admission window drawn in, and
// where each sampler's delay comes from.

import { html, useMemo, useRef, useState } from "./html.js";
import { count, duration, figure, percent, some } from "./format.js";
import { Heat } from "./heat.js";
import { Role } from "./protocol.js";
import { useSelect } from "./store.js";
import { Card, CAUSES, Claimed, Empty, PeerLink, Section, useKeptOrder, useWidth } from "./ui.js";

const BINS = 24; // bars that stay wide enough to read on a phone
const WIDTHS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000]; // versions a bar: round ones, so that the axis counts in round steps
const TALL = 150;
const EDGE = { left: 40, right: 10, top: 14, bottom: 22 };
const WORST = 12; // samplers shown before "show all"
const VERDICTS = ["admit", "stale", "duplicate", "over-quota", "malformed", "untrusted", "unscored", "unverified", "expired"];

export function Staleness() {
  return html`<${Section} id="staleness" title="Staleness" note="how far behind the newest release peers sample and learners train">
    <${Heat} />
    <div class="grid gap-top"><${LagVersions} /><${LagSeconds} /><${Verdicts} /><${Tokens} /></div>
    <${Causes} />
  <//>`;
}

// --- histograms ---

function LagVersions() {
  const [rows, limit] = useSelect(({ lag, run }) => [lag.versions, run?.window.versions ?? 1]);
  const { bins, edge, note, mean } = useMemo(() => {
    const most = Math.max(limit, ...rows.map(([versions]) => versions));
    const width = WIDTHS.find((versions) => (most + 1) / versions <= BINS) ?? Math.ceil((most + 1) / BINS);
    const bins = Array.from({ length: Math.ceil((most + 1) / width) }, (_, place) => ({ label: String(place * width), groups: 0, text: span(place * width, width) }));
    let [groups, sum] = [0, 0];
    for (const [versions, number] of rows) {
      bins[Math.floor(versions / width)].groups += number;
      groups += number;
      sum += versions * number;
    }
    return { bins, edge: (limit + 1) / width, mean: groups ? sum / groups : null, note: "trained groups by their lag in versions" };
  }, [rows, limit]);
  return html`<${Card} title="Lag at training" value=${mean === null ? "–" : `mean ${figure(mean)}`} note=${note}>
    <${Bars} name="Lag at training in versions" bins=${bins} edge=${edge} word=${`window ${count(limit)}`} /><//>`;
}

const span = (low, width) => (width === 1 ? some(low, "version") : `${low} to ${low + width - 1} versions`);

function LagSeconds() {
  const [rows, limit] = useSelect(({ lag, run }) => [lag.seconds, run?.window.seconds ?? 1]);
  const { bins, edge, oldest } = useMemo(() => {
    const powers = rows.map(([bound]) => Math.log2(bound));
    const low = Math.floor(Math.min(0, ...powers));
    const high = Math.max(Math.ceil(Math.log2(limit)), ...powers.map(Math.ceil));
    const bins = Array.from({ length: high - low + 1 }, (_, place) => ({ label: short(2 ** (low + place)), groups: 0, text: `up to ${duration(2 ** (low + place))}` }));
    rows.forEach(([, groups], place) => (bins[Math.round(powers[place]) - low].groups += groups));
    return { bins, edge: Math.log2(limit) - low + 1, oldest: rows.length ? `up to ${duration(rows.at(-1)[0])}` : "–" };
  }, [rows, limit]);
  return html`<${Card} title="Age at training" value=${oldest} note="trained groups by the age of their policy, seconds">
    <${Bars} name="Age at training in seconds" bins=${bins} edge=${edge} word=${`window ${duration(limit)}`} /><//>`;
}

const short = (bound) => (bound >= 7200 ? `${+(bound / 3600).toFixed(1)}h` : bound >= 120 ? `${Math.round(bound / 60)}m` : String(+bound.toPrecision(2)));

// bins: {label, groups, text}; a line at `edge` bars from the left ends the admission window.
function Bars({ name, bins, edge, word }) {
  const node = useRef(null);
  const width = Math.max(useWidth(node), 120);
  const most = Math.max(...bins.map((bin) => bin.groups));
  const slot = (width - EDGE.left - EDGE.right) / bins.length;
  const floor = TALL - EDGE.bottom;
  const tall = (groups) => (groups ? Math.max((groups / most) * (floor - EDGE.top), 1.5) : 0);
  const every = Math.ceil(32 / slot);
  const limit = EDGE.left + edge * slot;
  const before = limit > width / 2;
  const filled = bins.filter((bin) => bin.groups);
  return html`<div ref=${node} class="bars">
    <svg role="img" aria-label=${`${name}: ${filled.map((bin) => `${bin.text}: ${bin.groups}`).join("; ") || "nothing yet"}; ${word}`} width=${width} height=${TALL}>
      ${most === 0 && html`<text x=${width / 2} y=${TALL / 2} text-anchor="middle">nothing yet</text>`}
      ${most > 0 && steps(most).map((tick) => html`<g key=${tick}>
        <line class="gridline" x1=${EDGE.left} x2=${width - EDGE.right} y1=${floor - tall(tick)} y2=${floor - tall(tick)} />
        <text x=${EDGE.left - 6} y=${floor - tall(tick) + 4} text-anchor="end">${compact(tick)}</text></g>`)}
      <line class="axis" x1=${EDGE.left} x2=${width - EDGE.right} y1=${floor} y2=${floor} />
      ${bins.map((bin, place) => html`<g key=${place}>
        <rect class=${place >= edge ? "bar-mark late" : "bar-mark"} x=${EDGE.left + place * slot + slot * 0.08} width=${slot * 0.84}
          y=${floor - tall(bin.groups)} height=${tall(bin.groups)}>
          <title>${`${bin.text}: ${some(bin.groups, "group")}`}</title></rect>
        ${place % every === 0 && html`<text x=${EDGE.left + (place + 0.5) * slot} y=${TALL - 6} text-anchor="middle">${bin.label}</text>`}</g>`)}
      <line class="limit" x1=${limit} x2=${limit} y1=${2} y2=${floor} />
      <text class="limit-text" x=${before ? limit - 5 : limit + 5} y="11" text-anchor=${before ? "end" : "start"}>${word}</text>
    </svg></div>`;
}

// Two or three round figures up to `most`.
function steps(most) {
  const power = 10 ** Math.floor(Math.log10(most / 2));
  const step = Math.max(power * [1, 2, 5, 10].findLast((factor) => factor * power <= most / 2), 1);
  return Array.from({ length: Math.floor(most / step) }, (_, place) => (place + 1) * step);
}

const compact = (value) => (value >= 1e6 ? value.toExponential(1).replace("+", "") : value >= 10000 ? `${+(value / 1000).toPrecision(2)}k` : String(Math.round(value)));

function Verdicts() {
  const verdicts = useSelect((state) => state.verdicts);
  const rows = VERDICTS.filter((verdict) => verdict !== "expired" || verdicts.expired).map((verdict) => [verdict, verdicts[verdict] ?? 0]);
  const judged = rows.reduce((sum, [verdict, groups]) => sum + (verdict === "expired" ? 0 : groups), 0); // those were admitted before
  const most = Math.max(...rows.map(([, groups]) => groups), 1);
  return html`<${Card} title="Verdicts" value=${judged ? `${percent((verdicts.admit ?? 0) / judged)} admitted` : "–"}
      note="each delivered group gets one; admitted ones that turn out expired, or untrusted by a batch's check, get that on top">
    <dl class="verdicts">${rows.map(([verdict, groups]) => html`<div key=${verdict}>
      <dt>${verdict === "admit" ? "admitted" : verdict}</dt>
      <dd><span class=${verdict === "admit" ? "verdict-bar" : "verdict-bar refused"}
        style=${{ width: groups ? `max(4px, ${(60 * groups) / most}%)` : 0 }}></span>${count(groups)}</dd></div>`)}</dl><//>`;
}

function Tokens() {
  const { trained = 0, ...wasted } = useSelect((state) => state.tokens);
  const rows = Object.entries(wasted).sort((a, b) => b[1] - a[1]);
  const lost = rows.reduce((sum, [, tokens]) => sum + tokens, 0);
  const most = Math.max(...rows.map(([, tokens]) => tokens), 1);
  return html`<${Card} title="Tokens made for nothing" value=${trained + lost ? `${percent(lost / (trained + lost))} of all` : "–"}
      note="by cause; what no learner judged as its sampler claims">
    <dl class="verdicts" id="wasted">${rows.map(([cause, tokens]) => html`<div key=${cause}><dt>${cause}</dt>
      <dd><span class="verdict-bar refused" style=${{ width: `max(4px, ${(60 * tokens) / most}%)` }}></span>${count(tokens)}</dd></div>`)}</dl><//>`;
}

// --- where the delay comes from ---

function Causes() {
  const [all, setAll] = useState(false);
  const sorted = useSelect(({ peers }) => [...peers.values()]
    .filter((peer) => peer.role === Role.SAMPLER && peer.proven && !peer.gone)
    .map(({ id, name, claims: { causes } }) => ({ id, name, causes, total: CAUSES.reduce((sum, [cause]) => sum + causes[cause], 0) }))
    .filter(({ total }) => total > 0)
    .sort((a, b) => b.total - a.total));
  const [list, rows] = useKeptOrder(sorted, ({ id }) => id);
  const most = sorted[0]?.total ?? 1;
  const tools = rows.length > WORST && html`<button type="button" class="button" aria-expanded=${all} onClick=${() => setAll(!all)}>
    ${all ? `show the worst ${WORST}` : `show all ${rows.length}`}</button>`;
  return html`<div class="card gap-top" id="causes">
    <div class="card-head"><h3>Where each sampler's delay comes from</h3>${tools}</div>
    <p class="muted small note">seconds per group, mean of its last groups, largest first; <${Claimed}>claimed by the sampler<//></p>
    <ul class="legend" aria-label="Causes">${CAUSES.map(([cause, word]) => html`<li key=${cause}><span class=${`part part-${cause}`} aria-hidden="true"></span>${word}</li>`)}</ul>
    ${rows.length === 0 && html`<${Empty}>No sampler whose groups learners took told its delays yet.<//>`}
    <ul class="lag-rows" ref=${list}>${(all ? rows : rows.slice(0, WORST)).map((row) => html`<${Delay} key=${row.id} row=${row} most=${most} />`)}</ul>
  </div>`;
}

function Delay({ row, most }) {
  const parts = CAUSES.filter(([cause]) => row.causes[cause] > 0);
  const words = parts.map(([cause, word]) => `${word} ${duration(row.causes[cause])}`).join(", ");
  return html`<li class="lag-row">
    <${PeerLink} id=${row.id} name=${row.name} />
    <div class="lag-bar" role="img" aria-label=${`${words}; claimed by the sampler`} title=${words}>${parts.map(
      ([cause]) => html`<span key=${cause} class=${`part part-${cause}`} style=${{ width: `${(100 * row.causes[cause]) / most}%` }}></span>`,
    )}</div>
    <span class="number"><${Claimed}>${duration(row.total)}<//></span>
  </li>`;
}

// Who is here: a table to sort and to filter, a page of rows at a time, so that a thousand peers stay as quick as ten.
//
// The order is made anew at most once a second, and rows stay where they are under a pointer and while one of them has the focus or
// its drawer open: who is new comes at the end then. A row draws itself again only when one of the words in it changed. The drawer
// (drawer.js) has the rest.

import { html, useEffect, useRef, useState } from "./html.js";
import { Drawer, limits } from "./drawer.js";
import { age, bytes, count, duration, percent, some } from "./format.js";
import { Identicon } from "./identicon.js";
import { Phase, Role, ROLES } from "./protocol.js";
import { ageOf, lagOf, Near, shareOf, statusOf, store, useSwarm, useTick } from "./store.js";
import { Claimed, ClaimedLegend, Empty, Mark, memo, PeerLink, Section, settled } from "./ui.js";

const PAGE = 50; // rows in the document
const CALM = 1000; // milliseconds between two orders
const STATUSES = ["alive", "lost", "left"];

const total = (counts) => Object.values(counts).reduce((sum, number) => sum + number, 0);
const alive = (peer) => statusOf(peer) === "alive";
const WAITING = new Set([Phase.NO_POLICY, Phase.CATCHING_UP, Phase.SYNCING]);
const samples = (peer) => peer.role === Role.SAMPLER;

// [key, heading, class, what it sorts by (null: last), first direction, explanation]
const COLUMNS = [
  ["name", "Peer", "", (peer) => peer.name.toLowerCase(), 1],
  ["role", "Role", "c-mid", (peer) => ROLES.indexOf(peer.role), 1],
  ["state", "State", "", (peer) => `${STATUSES.indexOf(statusOf(peer))}${peer.claims.state}`, 1],
  ["behind", "Behind", "number", (peer) => (alive(peer) ? lagOf(peer) : null), -1, "versions behind the newest release, and how old the version is that it uses"],
  ["admitted", "Admitted", "number c-mid", (peer) => (samples(peer) ? peer.admitted : null), -1, "its groups that learners took"],
  ["refused", "Refused", "c-wide refused", (peer) => (samples(peer) ? total(peer.refused) : null), -1, "its groups that learners did not take, and why"],
  ["tokens", "Tokens/s", "number c-mid", (peer) => (alive(peer) ? peer.claims.tokens || null : null), -1],
  ["share", "Share", "number c-mid", shareOf, -1, "of a sampler: its part of all admitted groups; of a learner: its part of all trained groups"],
  ["rtt", "Round trip", "number c-mid c-more", (peer) => peer.rtt, 1, "fastest answer, timed by another peer"],
  ["hardware", "Hardware", "c-wide", (peer) => peer.claims.hardware.toLowerCase() || null, 1],
  ["line", "Line limit", "c-wider", (peer) => peer.claims.upload || peer.claims.download || null, 1, "what it lets releases and rounds send and take, in Mbit/s; groups go first"],
  ["since", "Since", "number c-wider", (peer) => (peer.claims.since == null ? null : -peer.claims.since), -1, "how long ago it started"],
];

export function Peers() {
  const [sort, setSort] = useState(["role", 1]);
  const [filter, setFilter] = useState({ text: "", role: "", status: "" });
  const [page, setPage] = useState(0);
  const { peers, selected, run } = useSwarm();
  useTick();
  const body = useRef(null);
  const order = useOrder(peers, sort, filter, () => selected !== null || body.current?.matches(":hover, :focus-within"));
  const pages = Math.max(Math.ceil(order.length / PAGE), 1);
  const here = Math.min(page, pages - 1);
  const change = (part) => {
    setFilter({ ...filter, ...part });
    setPage(0);
  };
  const toggle = (key, first) => setSort(([known, direction]) => [key, known === key ? -direction : first]);
  const said = order.length === peers.size ? some(peers.size, "peer") : `${count(order.length)} of ${some(peers.size, "peer")}`;
  const shown = order.slice(PAGE * here, PAGE * (here + 1)).map((id) => peers.get(id)).filter(Boolean);
  return html`<${Section} id="peers" title="Peers" tools=${html`<${Filter} filter=${filter} onChange=${change} />`}>
    <div class="card peer-card">
      <table class="list peers" aria-describedby="peers-shown">
        <caption class="sr">Peers of the swarm</caption>
        <thead><tr>${COLUMNS.map((column) => html`<${Heading} key=${column[0]} column=${column} sort=${sort} onSort=${toggle} />`)}</tr></thead>
        <tbody id="peer-rows" ref=${body}>${shown.map((peer) => html`<${Row} key=${peer.id} peer=${peer} ...${words(peer, run)} />`)}</tbody>
      </table>
      ${order.length === 0 && html`<${Empty} id="no-peers">${peers.size ? "No peer fits the filter." : "No peer was heard yet."}<//>`}
      <div class="peer-foot">
        <p class="muted small" id="peers-shown" role="status">${said}</p>
        ${pages > 1 && html`<${Pager} page=${here} pages=${pages} onPage=${setPage} />`}
        <p class="muted small"><span aria-hidden="true">⤳ relayed by a third peer · </span><${ClaimedLegend} /></p>
      </div>
    </div>
    <${Near.Provider} value=${true}><${Drawer} id=${selected} /><//>
  <//>`;
}

// Ids in the chosen order, those that left at the end: at once when the choice changed, at most once a second when the peers did.
function useOrder(peers, [key, direction], filter, holds) {
  const made = useRef({ at: 0, ids: [], choice: "", peers: null });
  const choice = JSON.stringify([key, direction, filter]);
  const timer = useRef(0);
  const [, redraw] = useState(0);
  useEffect(() => () => clearTimeout(timer.current), []);
  const { current } = made;
  const wait = current.at + CALM - performance.now();
  if (choice !== current.choice || (peers !== current.peers && wait <= 0)) {
    const by = COLUMNS.find(([name]) => name === key)[3];
    const ids = ordered(peers, by, direction, filter);
    const held = choice === current.choice && holds();
    made.current = { at: performance.now(), ids: held ? settled(current.ids, ids) : ids, choice, peers: held ? null : peers };
  } else if (peers !== current.peers && !timer.current) {
    timer.current = setTimeout(() => {
      timer.current = 0;
      redraw((turn) => turn + 1);
    }, wait);
  }
  return made.current.ids;
}

function ordered(peers, by, direction, { text, role, status }) {
  const wanted = text.trim().toLowerCase();
  const fits = (peer) =>
    (!role || peer.role === role) && (!status || statusOf(peer) === status) &&
    (!wanted || [peer.name, peer.claims.label, peer.id, peer.claims.hardware, peer.claims.state].some((word) => word.toLowerCase().includes(wanted)));
  const keyed = [...peers.values()].filter(fits).map((peer) => [by(peer), statusOf(peer) === "left", ROLES.indexOf(peer.role), peer.name, peer.id]);
  keyed.sort(([a, left, ...mine], [b, gone, ...theirs]) => {
    if (left !== gone) return left - gone;
    if (a == null || b == null) return (a == null) - (b == null) || compare(mine, theirs);
    return direction * ((a > b) - (a < b)) || compare(mine, theirs);
  });
  return keyed.map((entry) => entry.at(-1));
}

function compare(mine, theirs) {
  const place = mine.findIndex((value, index) => value !== theirs[index]);
  return place < 0 ? 0 : mine[place] < theirs[place] ? -1 : 1;
}

const Heading = memo(function Heading({ column, sort, onSort }) {
  const [key, word, kind, , first, title] = column;
  const direction = sort[0] === key ? sort[1] : 0;
  return html`<th scope="col" class=${kind} aria-sort=${["descending", "none", "ascending"][direction + 1]} title=${title}>
    <button type="button" onClick=${() => onSort(key, first)}>${word}<span class="sort" aria-hidden="true">${["▾", "", "▴"][direction + 1]}</span></button>
  </th>`;
});

// What a row says that is not in its peer alone: it changes with the time and with the newest release.
function words(peer, run) {
  const status = statusOf(peer);
  const lag = status === "alive" ? lagOf(peer) : null;
  const { since } = peer.claims;
  return {
    status, lag, late: lag != null && run != null && lag > run.window.versions,
    aged: lag != null && peer.released != null ? age(ageOf(peer)) : "",
    silent: status === "lost" ? age(store.now() - peer.heard) : "",
    share: shareOf(peer), since: since == null ? "–" : age(store.now() - since),
  };
}

const Row = memo(function Row({ peer, status, lag, late, aged, silent, share, since }) {
  const { claims } = peer;
  const here = status === "alive";
  return html`<tr class=${status}>
    <th scope="row"><span class="peer-name"><${Identicon} id=${peer.id} /><span><${PeerLink} id=${peer.id} name=${peer.name} />
      ${claims.label && html`<span class="small label"><${Claimed}>${claims.label}<//></span>`}
      <span class="muted small narrow">${peer.role}</span></span></span></th>
    <td class="c-mid">${peer.role}</td>
    <td><${State} status=${status} word=${here ? claims.state : peer.revoked ? "revoked" : status} silent=${silent} />${here && WAITING.has(claims.phase) && html` <${Fetched} fetching=${claims.fetching} />`}${
      here && claims.progress && html` <span class="muted small"><${Claimed}>${count(claims.progress.done)} of ${count(claims.progress.total)}<//></span>`}</td>
    <td class="number">${lag == null ? "–" : html`<span class=${late ? "late" : ""}>${late && html`
      <span class="mark" aria-hidden="true">▲</span><span class="sr">too old to train on: </span>`}${count(lag)}</span>
      <span class="muted small beside">${aged}</span>`}</td>
    <td class="number c-mid">${samples(peer) ? count(peer.admitted) : "–"}</td>
    <td class="c-wide refused"><${Refused} peer=${peer} /></td>
    <td class="number c-mid">${here && claims.tokens ? html`<${Claimed}>${count(claims.tokens)}<//>` : "–"}</td>
    <td class="number c-mid"><${Share} value=${share} /></td>
    <td class="number c-mid c-more">${duration(peer.rtt)}${peer.relayed && html` <span class="relayed" title="relayed: over a third peer">
      <span aria-hidden="true">⤳</span><span class="sr">relayed</span></span>`}</td>
    <td class="c-wide small hardware">${claims.hardware ? html`<${Claimed}>${claims.hardware}<//>` : "–"}</td>
    <td class="c-wider small">${claims.upload || claims.download ? html`<${Claimed}>${limits(claims).join(", ")}<//>` : "none"}</td>
    <td class="number c-wider"><${Claimed}>${since}<//></td>
  </tr>`;
});

function State({ status, word, silent }) {
  if (status === "alive") return word ? html`<${Mark} kind="alive" word=${html`<${Claimed}>${word}<//>`} />` : html`<${Mark} kind="alive" word="here" />`;
  return html`<${Mark} kind=${status} word=${word} />${silent && html` <span class="muted small">${silent}</span>`}`;
}

// How much of a policy is there, of a peer that waits for it.
function Fetched({ fetching }) {
  return fetching && html`<span class="muted small fetched"><${Claimed}>${bytes(fetching.held)} of ${bytes(fetching.size)}<//></span>`;
}

function Refused({ peer }) {
  if (!samples(peer)) return "–";
  const reasons = Object.entries(peer.refused).filter(([, number]) => number).sort((a, b) => b[1] - a[1]);
  if (!reasons.length) return html`<span class="muted">none</span>`;
  return reasons.map(([verdict, number], place) => html`<span key=${verdict} class="reason">${count(number)} ${verdict}${place < reasons.length - 1 && ", "}</span> `);
}

function Share({ value }) {
  if (value == null) return "–";
  return html`${percent(value, value < 0.0995 ? 1 : 0)} <svg class="meter" viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">
    <rect class="track" width="100" height="10" /><rect class="fill" width=${Math.min(100 * value, 100)} height="10" /></svg>`;
}

function Filter({ filter, onChange }) {
  const pick = (name, label, words) => html`<select aria-label=${label} value=${filter[name]} onChange=${(event) => onChange({ [name]: event.target.value })}>
    <option value="">${words[0]}</option>${words[1].map((word) => html`<option key=${word} value=${word}>${word}</option>`)}</select>`;
  return html`<input type="search" id="peer-filter" aria-label="Find peers by name, label, id, hardware or state" placeholder="Find a peer" value=${filter.text}
      onInput=${(event) => onChange({ text: event.target.value })} />
    ${pick("role", "Role", ["all roles", ROLES])} ${pick("status", "State", ["all states", STATUSES])}`;
}

// A button without a further page keeps the focus: a disabled one would drop it.
function Pager({ page, pages, onPage }) {
  return html`<nav class="pager" aria-label="Pages of peers">
    <button type="button" class="button" aria-disabled=${page === 0} onClick=${() => page > 0 && onPage(page - 1)}><span aria-hidden="true">◂</span><span class="sr">Page before</span></button>
    <span class="small">page ${page + 1} of ${pages}</span>
    <button type="button" class="button" aria-disabled=${page === pages - 1} onClick=${() => page < pages - 1 && onPage(page + 1)}>
      <span aria-hidden="true">▸</span><span class="sr">Next page</span></button>
  </nav>`;
}

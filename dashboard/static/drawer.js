// Everything of one peer: what it does and why it is idle, what others counted, what it says of itself, and what happened to it.
//
// The address has `#peer=<id>` while the drawer is open, so that a person can hand on the link to *my* peer; Back closes it. The
// dialog is the browser's own: it keeps the focus, Escape closes it, the focus returns to where it was.

import { html, useEffect, useLayoutEffect, useRef, useState } from "./html.js";
import { EventList } from "./events.js";
import { age, ago, bytes, count, duration, figure, percent, some } from "./format.js";
import { Identicon } from "./identicon.js";
import { Copy } from "./invite.js";
import { Phase, Role } from "./protocol.js";
import { ageOf, lagOf, shareOf, statusOf, store, useSelect, useTick } from "./store.js";
import { Age, Awaited, CAUSES, Claimed, ClaimedLegend, Mark, memo, poll, Prose } from "./ui.js";

const AGAIN = 3000; // milliseconds between two questions for the peer's events
const FLOWS = 6;

// What a phase means, and what it waits for.
const MEANINGS = {
  [Phase.SAMPLING]: "It writes completions.",
  [Phase.NO_CREDIT]: "Idle: no learner has room for its groups now. Learners are full, or none is alive; nothing is to be done at this peer.",
  [Phase.NO_TASKS]: "Idle: its source of tasks gives none now; the reason is among its events.",
  [Phase.NO_ENGINE]: "Its engine failed and is tried again, at the latest every half minute; the reason is among its events.",
  [Phase.NO_POLICY]: "Idle: it has not fetched a policy yet. If this lasts, no peer that it reaches has one to give.",
  [Phase.GATHERING]: "It waits until enough groups came for a batch. If this lasts, samplers are too few, too slow, or their groups are refused.",
  [Phase.LEARNING]: "It computes the gradient of its batch.",
  [Phase.MATCHING]: "It averages its gradient with the other learners.",
  [Phase.STEPPING]: "It applies the averaged gradient.",
  [Phase.RELEASING]: "It publishes the new policy, or waits for the one that does.",
  [Phase.EARLY]: "It computes its next gradient while its new policy is packed and published.",
  [Phase.CATCHING_UP]: "It missed versions and fetches the newest policy; it trains on after that.",
  [Phase.SYNCING]: "It takes over the whole state of another learner; the others wait, and it is in step with them after that.",
  [Phase.STOPPED]: "It trains no more.",
  [Phase.EVALUATING]: "It judges a release on held-out tasks.",
  [Phase.AUDITING]: "It replays groups that learners were sent, and tells them which are what policy and seed draw.",
  [Phase.NO_RELEASE]: "Idle: it has judged the newest release that was due.",
  [Phase.SERVING]: "It hands out releases and the addresses of others.",
  [Phase.WATCHING]: "It watches, and shows a dashboard like this one.",
  [Phase.PAUSED]: "Its owner paused it. It keeps its place and serves releases; no peer waits for it, and nothing needs to be done.",
  [Phase.LIMITED]: "It is at a limit that its owner set: its hours, a battery, a machine in use. It resumes by itself; no peer waits for it.",
  [Phase.COMPLETE]: "The run has reached its last version; it still hands out releases.",
  [Phase.LEAVING]: "It says good-bye.",
};
const ABSENT = {
  lost: "No heartbeat has arrived for longer than the run's patience: its machine, its process or its network is down. It returns here with its next heartbeat.",
  revoked: "The run's owner revoked it: nothing that it says is taken any more.",
  left: "It left in good order. Start it again with the same key and it is the same peer.",
};

const addressed = () => {
  const found = /^#peer=(.+)$/.exec(location.hash);
  if (!found) return null;
  try {
    return decodeURIComponent(found[1]);
  } catch {
    return found[1]; // badly written: the drawer says that no peer has this id
  }
};

export function Drawer({ id }) {
  const dialog = useRef(null);
  useEffect(() => {
    const read = () => store.select(addressed());
    if (addressed()) read();
    addEventListener("hashchange", read);
    return () => removeEventListener("hashchange", read);
  }, []);
  useLayoutEffect(() => { // with the words: a key that is pressed between them and the open dialog would go to the dashboard
    if (id && !dialog.current.open) dialog.current.showModal();
    if (!id && dialog.current.open) dialog.current.close();
  }, [id]);
  useEffect(() => {
    if (id && addressed() !== id) location.hash = `peer=${encodeURIComponent(id)}`;
    if (!id && addressed()) history.replaceState(null, "", location.pathname + location.search);
  }, [id]);
  const closed = () => {
    store.select(null);
    store.opener?.focus({ preventScroll: true }); // the browser does so itself unless the row was moved meanwhile
  };
  const outside = (event) => event.target === dialog.current && dialog.current.close();
  return html`<dialog ref=${dialog} class="drawer" aria-labelledby="drawer-name" onClose=${closed} onClick=${outside}>
    ${id && html`<div class="drawer-inner"><${Content} key=${id} id=${id} onClose=${() => dialog.current.close()} /></div>`}
  </dialog>`;
}

function Content({ id, onClose }) {
  const peer = useSelect(({ peers }) => peers.get(id));
  const events = useEvents(id, peer !== undefined);
  useTick();
  return html`
    <header class="drawer-head">
      <${Identicon} id=${id} size=${44} />
      <div><h2 id="drawer-name">${peer ? peer.name : "An unknown peer"}</h2><p class="muted">${peer?.role}</p></div>
      <button type="button" class="button drawer-close" onClick=${onClose}>Close</button>
    </header>
    <${Id} id=${id} />
    ${peer ? html`<${Doing} peer=${peer} /><${Facts} peer=${peer} /><${Flows} id=${id} /><${Claims} peer=${peer} />`
      : html`<p class="muted">No peer with this id has been seen yet. This dashboard shows it with its first heartbeat.</p>`}
    <section><h3>Events</h3>${events?.length ? html`<${EventList} lines=${events} />`
      : events || !peer ? html`<p class="muted small">none yet</p>` : html`<${Awaited} />`}</section>`;
}

function Id({ id }) {
  const text = useRef(null);
  return html`<div class="copy-box"><code ref=${text} tabindex="0" aria-label="Peer id">${id}</code><${Copy} text=${id} node=${text} word="Copy id" />
    <${Copy} text=${location.href} node=${text} word="Copy link" /></div>`;
}

// Events of the peer, newest first, asked for again and again while the drawer is open; null before the first answer.
function useEvents(id, known) {
  const [events, set] = useState(null);
  useEffect(
    () => (known ? poll(`api/peers/${encodeURIComponent(id)}`, AGAIN, (peer) => set(peer.events.reverse())) : undefined),
    [id, known],
  );
  return events;
}

function Doing({ peer }) {
  const problems = useSelect((state) => state.problems.filter(({ peers }) => peers.includes(peer.id)));
  const status = statusOf(peer);
  const silent = store.now() - peer.heard;
  const { phase, state } = peer.claims;
  return html`<section class="doing">
    <p class="doing-state">${status === "alive" ? html`<${Mark} kind="alive" word=${html`<${Claimed}>${state || "here"}<//>`} />` : html`<${Mark} kind=${status} word=${peer.revoked ? "revoked" : status} />`}
      <span class="muted small"> heard ${ago(silent)}</span></p>
    <p>${status === "alive" ? MEANINGS[phase] ?? "" : ABSENT[peer.revoked ? "revoked" : status]}</p>
    ${problems.map(({ key, level, text, cause, todo }) => html`<div key=${key} class=${`doing-problem ${level}`}>
      <p><${Mark} kind=${level} word=${level} /> <${Prose} text=${text} /></p>
      <p class="small"><span class="muted">Cause:</span> <${Prose} text=${cause} /></p>
      <p class="small"><span class="muted">Next step:</span> <${Prose} text=${todo} /></p></div>`)}
  </section>`;
}

const Term = ({ word, children }) => html`<div><dt>${word}</dt><dd>${children}</dd></div>`;

function Facts({ peer }) {
  const [lag, share] = [lagOf(peer), shareOf(peer)];
  const refused = Object.entries(peer.refused).filter(([, number]) => number).sort((a, b) => b[1] - a[1]);
  return html`<section><h3>Counted and timed by others</h3><dl class="terms">
    ${lag != null && html`<${Term} word="Version">${count(peer.version)}<//>
      <${Term} word="Behind">${lag ? `${some(lag, "version")}, ` : "newest, "}${age(ageOf(peer))} old<//>`}
    ${peer.role === Role.SAMPLER && html`<${Term} word="Admitted">${count(peer.admitted)} groups<//>
      <${Term} word="Refused">${refused.length === 0 ? "none" : refused.map(
        ([verdict, number]) => html`<span key=${verdict} class="drawer-reason">${count(number)} ${verdict}</span>`)}<//>`}
    ${share != null && html`<${Term} word="Share of the work">${percent(share)}<//>`}
    <${Term} word="Round trip">${peer.rtt == null ? "not timed" : duration(peer.rtt)}<//>
    <${Term} word="Route">${peer.relayed == null ? "not known" : peer.relayed ? "⤳ relayed by a third peer" : "direct"}<//>
    <${Term} word="Clock">${clockWords(peer.skew)}<//>
  </dl></section>`;
}

function clockWords(skew) {
  if (skew == null) return "not compared";
  return Math.abs(skew) < 0.05 ? "right" : `${duration(Math.abs(skew))} ${skew > 0 ? "ahead" : "behind"}`;
}

// What it gives of its line: words for each direction that it limits.
export const limits = ({ upload, download }) =>
  [[upload, "up"], [download, "down"]].filter(([mbit]) => mbit).map(([mbit, way]) => `${Number(mbit.toPrecision(3))} Mbit/s ${way}`);

function Line({ claims }) {
  const words = limits(claims).join(" and ");
  return html`<p class="small"><${Claimed}>${words
    ? `It gives releases and rounds ${words} of its line; groups go first.` : "It sets no limit: releases and rounds may take all of its line."}<//></p>`;
}

function Claims({ peer }) {
  const { claims, role } = peer;
  const done = { [Role.LEARNER]: "Groups trained", [Role.SAMPLER]: "Groups sampled", [Role.EVALUATOR]: "Versions judged", [Role.AUDITOR]: "Groups replayed" }[role];
  const say = (word, value) => html`<${Term} word=${word}><${Claimed}>${value}<//><//>`;
  return html`<section><h3>Claimed by itself</h3><dl class="terms">
    ${claims.label && say("Calls itself", claims.label)}
    ${say("Hardware", claims.hardware || "–")}
    <${Term} word="Started"><${Claimed}><${Age} at=${claims.since} /><//><//>
    ${done && say(done, count(claims.done))}
    ${done && say("Rate", `${figure(claims.rate)}/s`)}
    ${role === Role.SAMPLER && say("Tokens", `${count(claims.tokens)}/s`)}
    ${done && say("Busy", percent(claims.busy, 0))}
    ${role === Role.LEARNER && html`${say("Groups refused", count(claims.refused))}${say("Room for", `${count(claims.credit)} groups`)}`}
    ${(role === Role.LEARNER || role === Role.SAMPLER) && say(role === Role.LEARNER ? "In its inbox" : "On the way", `${count(claims.inbox)} groups`)}
    ${claims.fetching && say(`Fetches version ${count(claims.fetching.version)}`, `${bytes(claims.fetching.held)} of ${bytes(claims.fetching.size)}`)}
  </dl>
  <${Line} claims=${claims} />
  ${role === Role.SAMPLER && html`<${Delay} causes=${claims.causes} />`}
  <p><${ClaimedLegend} /></p></section>`;
}

// Where the age of its groups comes from: one bar, cause by cause.
const Delay = memo(function Delay({ causes }) {
  const sum = CAUSES.reduce((total, [name]) => total + causes[name], 0);
  if (!sum) return null;
  let from = 0;
  const parts = CAUSES.map(([name, word]) => {
    const part = { name, word, seconds: causes[name], from, width: (100 * causes[name]) / sum };
    from += part.width;
    return part;
  });
  return html`<div class="peer-delay"><h4>Its groups are ${duration(sum)} old when they are admitted</h4>
    <svg class="peer-delay-bar" viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">${parts.map(
      ({ name, from: x, width }) => html`<rect key=${name} class=${`cause-${name}`} x=${x} width=${width} height="10" />`)}</svg>
    <ul class="peer-delay-words small">${parts.map(({ name, word, seconds }) => html`
      <li key=${name}><span class=${`swatch cause-${name}`} aria-hidden="true"></span>${word} <${Claimed}>${duration(seconds)}<//></li>`)}</ul>
  </div>`;
});

function Flows({ id }) {
  const flows = useSelect((state) => state.flows.filter(({ source, target }) => source === id || target === id)
    .sort((a, b) => b.rate - a.rate).slice(0, FLOWS).map((flow) => [flow, state.peers.get(flow.source === id ? flow.target : flow.source)?.name ?? "?"]));
  if (!flows.length) return null;
  return html`<section><h3>Biggest flows now</h3><ul class="small peer-flows">${flows.map(([{ source, target, purpose, rate, relayed }, name]) => html`
    <li key=${source + target + purpose}>${source === id ? "→ to" : "← from"} ${name}: ${purpose}, ${bytes(rate)}/s${relayed ? ", ⤳\u00a0relayed" : ""}</li>`)}</ul></section>`;
}

// What is wrong now: the verdict that the dashboard begins with, and a card for each problem with its cause and the next step.

import { html, useMemo } from "./html.js";
import { age, count, some } from "./format.js";
import { Incidents } from "./incidents.js";
import { Word } from "./invite.js";
import { QUIET, store, useSelect, useTick } from "./store.js";
import { Mark, memo, PeerLink, Prose, Section, useKeptOrder } from "./ui.js";

const ORDER = ["error", "warning", "info"];
const WORDS = { error: "broken", warning: "warning", info: "note" };
const AGE = /\d (s|min|h|d)\b/; // in a sentence: a second one beside it would be of another moment
const NAMES = 5; // peers named on a card; the sentence tells of all

export function Problems() {
  const problems = useSelect((state) => state.problems);
  const awaits = useSelect((state) => state.condition?.join);
  const sorted = [...problems].sort((a, b) => ORDER.indexOf(a.level) - ORDER.indexOf(b.level) || (a.since ?? 0) - (b.since ?? 0));
  const [list, order] = useKeptOrder(sorted, ({ key }) => key);
  const aloud = useMemo( // once, and not at each of its figures
    () => (order.length ? `${some(order.length, "problem")}. ${sorted[0].text}` : "no problem"), [order.length, sorted[0]?.key]);
  return html`<${Section} id="wrong" title="What is wrong">
    <p class="sr" role="status">${aloud}</p>
    ${order.length === 0 && html`<${Well} />`}
    <ul id="problems" class="problems" ref=${list}>${order.map((problem) => html`<${Card} key=${problem.key} problem=${problem} />`)}</ul>
    ${awaits && html`<${Word} />`}
    <${Incidents} />
  <//>`;
}

const Card = memo(function Card({ problem }) {
  const { key, level, text, cause, todo, peers, since } = problem;
  const names = useSelect((state) => peers.slice(0, NAMES).map((id) => [id, state.peers.get(id)?.name]).filter(([, name]) => name));
  return html`<li data-key=${key} class=${`card problem ${level}`}>
    <div class="problem-head">
      <${Mark} kind=${level} word=${WORDS[level]} />
      <p class="problem-text"><${Prose} text=${text} /></p>
      ${since != null && !AGE.test(text) && html`<span class="muted small problem-since"><${For} since=${since} /></span>`}
    </div>
    <dl class="problem-body">
      <dt>Cause</dt><dd><${Prose} text=${cause} /></dd>
      <dt>Next step</dt><dd><${Prose} text=${todo} /></dd>
      ${names.length > 0 && html`<dt>Open</dt><dd class="problem-peers">${names.map(([id, name]) => html`<${PeerLink} key=${id} id=${id} name=${name} />`)}</dd>`}
    </dl>
  </li>`;
});

function For({ since }) {
  useTick();
  return `for ${age(store.now() - since)}`;
}

// The first line of the dashboard: the worst sentence, or what is waited for, or that all is well.
export function Verdict() {
  useTick();
  const condition = useSelect((state) => state.condition);
  const { state, seconds } = store.link();
  const old = state === "lost" || (state === "full" && seconds >= QUIET);
  const why = state === "full" ? "This peer has no room for this dashboard" : "This dashboard has lost its peer";
  const { kind, text, more } = old ? { kind: "error", text: `${why}: what it shows is ${age(seconds)} old.`, more: 0 } : condition;
  return html`<p id="verdict" class=${`verdict ${kind}`}>
    <span class=${`is-${kind}`}><${Mark} kind=${kind} word=${WORDS[kind]} /></span>
    <a href="#wrong"><${Prose} text=${text} />${more > 0 && html` <span class="muted">and ${count(more)} more</span>`}</a>
  </p>`;
}

// Without a problem: the dashboard's first line says how the swarm is.
function Well() {
  return html`<p class="card well" id="well"><${Mark} kind="ok" word="Nothing is wrong now." /></p>`;
}

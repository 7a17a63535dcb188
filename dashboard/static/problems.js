// What is wrong now: one card per problem with its cause and the next step; one line when all is well.

import { html } from "./vendor/htm-preact-3.1.1.js";
import { age, some } from "./format.js";
import { store, useSelect, useTick } from "./store.js";
import { Mark, memo, PeerLink, Prose, Section } from "./ui.js";

const ORDER = ["error", "warning", "info"];
const WORDS = { error: "broken", warning: "warning", info: "note" };
const NAMES = 5; // peers named on a card; the sentence tells of all

export function Problems() {
  const problems = useSelect((state) => state.problems);
  const order = [...problems].sort((a, b) => ORDER.indexOf(a.level) - ORDER.indexOf(b.level) || (a.since ?? 0) - (b.since ?? 0));
  return html`<${Section} id="wrong" title="What is wrong">
    <p class="sr" role="status">${order.length ? `${some(order.length, "problem")}. ${order[0].text}` : "no problem"}</p>
    ${order.length === 0 && html`<${Well} />`}
    <ul id="problems" class="problems">${order.map((problem) => html`<${Card} key=${problem.key} problem=${problem} />`)}</ul>
  <//>`;
}

const Card = memo(function Card({ problem }) {
  const { key, level, text, cause, todo, peers, since } = problem;
  const names = useSelect((state) => peers.slice(0, NAMES).map((id) => [id, state.peers.get(id)?.name]).filter(([, name]) => name));
  return html`<li data-key=${key} class=${`card problem ${level}`}>
    <div class="problem-head">
      <${Mark} kind=${level} word=${WORDS[level]} />
      <p class="problem-text"><${Prose} text=${text} /></p>
      ${since != null && html`<span class="muted small problem-since"><${For} since=${since} /></span>`}
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

function Well() {
  useTick();
  const [alive, heard] = useSelect(({ head, peers }) => [Object.values(head.roles).reduce((sum, [here]) => sum + here, 0), peers.size]);
  const { state, seconds } = store.link();
  if (state === "silent" || state === "lost") {
    return html`<p class="card well"><${Mark} kind="warning" word="not known" /> Nothing was heard for ${age(seconds)}; before that all was well.</p>`;
  }
  if (alive === 0) {
    const why = heard ? "Every peer that was here has left or is lost: the run is over, or starts again." : "No peer was heard yet.";
    return html`<p class="card well" id="well"><${Mark} kind="waiting" word="Nobody is here." /> <span class="muted">${why}</span></p>`;
  }
  return html`<p class="card well" id="well"><${Mark} kind="ok" word="All is well." /> <span class="muted">${some(alive, "peer")} alive.</span></p>`;
}

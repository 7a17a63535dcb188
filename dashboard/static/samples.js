// The newest trained groups, for reading: the prompt, what the policy wrote, and what the learner made of it. New groups wait while
// a person reads: under the pointer, with the focus inside, or until Pause is pressed again.

import { html, useRef, useState } from "./html.js";
import { count, figure, some } from "./format.js";
import { useSelect } from "./store.js";
import { Age, Empty, memo, PeerLink, Section } from "./ui.js";

const FIRST = 4; // groups at first sight
const SCALE = 2; // the weight at which a bar is full, unless the group has a larger one; 1 is the middle

export function Samples() {
  const samples = useSelect((state) => state.samples);
  const [paused, setPaused] = useState(false);
  const [reading, setReading] = useState(false);
  const [all, setAll] = useState(false);
  const held = useRef([]);
  const hold = (paused || reading) && held.current.length > 0;
  if (!hold) held.current = samples;
  const known = new Set(held.current.map(({ id }) => id));
  const fresh = samples.filter(({ id }) => !known.has(id)).length;
  const shown = all ? held.current : held.current.slice(0, FIRST);
  const tools = html`
    <span class="muted small" role="status" id="samples-wait">${hold && (fresh ? `held while you read: ${some(fresh, "newer group")}` : "held while you read") || "\u00a0"}</span>
    <button type="button" aria-pressed=${paused} onClick=${() => setPaused(!paused)}>${paused ? "Go on" : "Pause"}</button>`;
  return html`<${Section} id="samples" title="Samples" note="newest trained groups" tools=${tools}>
    ${shown.length === 0 && html`<div class="card"><${Empty}>No group to read yet. Learners show some of those that they train on.<//></div>`}
    <ol class="samples" onPointerEnter=${() => setReading(true)} onPointerLeave=${() => setReading(false)}
      onFocusIn=${() => setReading(true)} onFocusOut=${(event) => setReading(event.currentTarget.contains(event.relatedTarget))}>
      ${shown.map((sample, place) => html`<${Sample} key=${place} sample=${sample} />`)}
    </ol>
    ${held.current.length > FIRST && html`<p class="more"><button type="button" class="button" aria-expanded=${all} onClick=${() => setAll(!all)}>
      ${all ? "Fewer groups" : `All ${count(held.current.length)} groups`}</button></p>`}
  <//>`;
}

const Sample = memo(function Sample({ sample }) {
  const { sampler, learner, version, prompt, answer, completions, rewards, advantages, weights } = sample;
  const names = useSelect(({ peers }) => [sampler, learner].map((id) => peers.get(id)?.name ?? `${id.slice(0, 12)}…`));
  const scale = Math.max(SCALE, ...weights);
  const mean = rewards.length ? rewards.reduce((sum, reward) => sum + reward, 0) / rewards.length : null;
  return html`<li class="card sample">
    <dl class="sample-task">
      <dt>Prompt</dt><dd class="mono sample-text"><${Text} text=${prompt} /></dd>
      <dt>Answer</dt><dd class="mono sample-text"><${Text} text=${answer} /></dd>
    </dl>
    <p class="muted small sample-from"><${Age} at=${sample.at} />: version ${count(version)}, by <${PeerLink} id=${sampler} name=${names[0]} />,${" "}
      trained by <${PeerLink} id=${learner} name=${names[1]} />; mean reward ${figure(mean)}</p>
    <table class="list completions">
      <caption class="sr">Completions of this group</caption>
      <thead><tr><th scope="col">Completion</th><th scope="col" class="number">Reward</th><th scope="col" class="number" title="how much better than its group">Advantage</th>
        <th scope="col" class="number" title="importance weight as the objective uses it; the line is 1">Weight</th></tr></thead>
      <tbody>${completions.map((text, place) => html`<tr key=${place}>
        <td><div class="mono sample-text"><${Text} text=${text} /></div></td>
        <td class="number">${figure(rewards[place])}</td>
        <td class="number">${signed(advantages[place])}</td>
        <td class="number"><${Weight} value=${weights[place]} scale=${scale} /></td>
      </tr>`)}</tbody>
    </table>
  </li>`;
});

function signed(value) {
  if (value == null) return "–";
  return `${value > 0 ? "+" : value < 0 ? "−" : ""}${figure(Math.abs(value))}`;
}

// A figure and a bar with a line at 1: left of it a completion counts less than it would on policy.
function Weight({ value, scale }) {
  if (value == null) return html`<span class="muted" title="no weight was computed">–</span>`;
  const place = (100 * Math.min(value, scale)) / scale;
  return html`<span class="weight" title=${value === 0 ? "it does not count: outside the trust region" : undefined}>${figure(value)}
    <svg class="meter" viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">
      <rect class="track" width="100" height="10" /><rect class="fill" width=${place} height="10" /><path class="one" d=${`M${100 / scale} 0V10`} />
    </svg></span>`;
}

// A text with its white space made visible where it matters: line ends, tabs, blanks at either end.
function Text({ text }) {
  if (text === "") return html`<span class="blank">(empty)</span>`;
  const [, before, inner, after] = /^( *)([^]*?)( *)$/.exec(text);
  const parts = inner.split(/([\n\t])/).filter(Boolean);
  return html`${before && html`<span class="blank">${"·".repeat(before.length)}</span>`}${parts.map((part) =>
    part === "\n" ? html`<span class="blank">↵</span>${"\n"}` : part === "\t" ? html`<span class="blank">⇥</span>${"\t"}` : part,
  )}${after && html`<span class="blank">${"·".repeat(after.length)}</span>`}`;
}

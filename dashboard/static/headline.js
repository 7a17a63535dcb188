// The swarm in a line, how far it is in what takes long, and where each learner is in its averaging round.
//
// Rounds may be faster than a reader: then a row tells which part of the time each phase takes, taken from what was seen in the
// last seconds, instead of a mark that jumps. A slow round shows the present phase and its clock.

import { html, useEffect, useMemo, useRef } from "./html.js";
import { age, bytes, clock, count, duration, figure, percent, some } from "./format.js";
import { Phase, Role, ROLES, STAGES } from "./protocol.js";
import { store, useSelect, useTick } from "./store.js";
import { Age, Claimed, ClaimedLegend, Figure, Mark, PeerLink, useKeptOrder } from "./ui.js";

const PHASES = [Phase.GATHERING, Phase.LEARNING, Phase.MATCHING, Phase.STEPPING, Phase.RELEASING];
const MARKED = { here: "▸", done: "✓" };
const ROWS = 6; // learners shown one by one; the others as a sum
const MEMORY = 20; // seconds of phases behind the shares of a fast round
const FAST = 6; // seconds a round: below it a mark would jump faster than one reads
const SLOW = 60; // seconds in one phase after which a learner moves to the top
const MEMBERS = 4; // names of the last round

export function Headline() {
  return html`<section id="now" aria-labelledby="run" class="section now">
    <${Run} />
    <dl class="card figures"><${Version} /><${Reward} /><${Accuracy} /><${Alive} /><${Groups} /><${Tokens} /><${Busy} /><${Weights} /></dl>
    <${Note} />
    <${Progress} />
    <${Round} />
  </section>`;
}

function Run() {
  const run = useSelect((state) => state.run);
  return html`<div class="now-head">
    <h1 id="run">${run ? run.name : "…"}</h1>
    <p class="muted" id="about">${run ? [run.task, run.model, run.objective, run.private && "private"].filter(Boolean).join(" · ") : "\u00a0"}</p>
    <p class="legend-right"><${ClaimedLegend} /></p>
  </div>`;
}

function Version() {
  const [version, released, last] = useSelect(({ head, run }) => [head?.version, head?.released, run?.versions]);
  const note = released == null ? "no release seen yet" : html`<${Age} at=${released} prefix="released " />`;
  return html`<${Figure} id="version" noteId="version-age" label="Policy version" note=${note}
    value=${html`${count(version)}${last > 0 && html`<small class="muted"> of ${count(last)}</small>`}`} />`;
}

function Reward() {
  const [reward, coming, trained] = useSelect(({ head }) => [head?.reward, head?.coming, head?.trained ?? 0]);
  if (reward == null && coming != null) {
    return html`<${Figure} id="reward" label="Reward so far" value=${figure(coming)} note="of the groups that have come" claimed />`;
  }
  return html`<${Figure} id="reward" label="Reward now" value=${figure(reward)} note=${`${some(trained, "group")} trained`} />`;
}

function Accuracy() {
  const [first, last] = useSelect(({ head }) => [head?.first_accuracy, head?.evaluation]);
  if (!last) return html`<${Figure} id="accuracy" label="Held-out accuracy" value="–" note="not evaluated yet" />`;
  const since = first && first[0] !== last.version ? `from ${percent(first[1])} at version ${count(first[0])}` : `at version ${count(last.version)}`;
  const note = `95 %: ${(100 * last.low).toFixed(1)}–${percent(last.high)}; ${since}`;
  const estimates = Object.entries(last.sampled); // the mean first, then pass@2 to pass@k: the page has room for two
  const sampled = estimates.filter((_, place) => place === 0 || place === estimates.length - 1).map(([name, { value }]) => `; ${name} ${percent(value)}`).join("");
  return html`<${Figure} id="accuracy" label="Held-out accuracy" value=${percent(last.accuracy)} note=${note + sampled} />`;
}

function Alive() {
  const roles = useSelect(({ head }) => head?.roles ?? {});
  const strangers = useSelect(({ head }) => head?.strangers ?? 0);
  const known = ROLES.filter((role) => roles[role]);
  const sum = (place) => known.reduce((total, role) => total + roles[role][place], 0);
  const words = known.map((role) => {
    const [alive, all] = roles[role];
    return alive === all ? some(all, role) : `${alive} of ${some(all, role)}`;
  });
  if (strangers) words.push(some(strangers, "stranger"));
  return html`<${Figure} id="alive" label="Peers alive" noteId="roles"
    value=${html`${count(sum(0))}<small class="muted"> of ${count(sum(1))}</small>`} note=${words.join(", ")} />`;
}

function Groups() {
  const rate = useSelect(({ head }) => head?.groups_per_second);
  return html`<${Figure} id="groups" label="Groups/s" value=${figure(rate)} note="trained by all learners" claimed />`;
}

function Tokens() {
  const rate = useSelect(({ head }) => head?.tokens_per_second);
  return html`<${Figure} id="tokens" label="Tokens/s" value=${count(rate)} note="trained by all learners" claimed />`;
}

function Busy() {
  const busy = useSelect(({ head }) => head?.busy);
  return html`<${Figure} id="busy" label="Learners busy" value=${percent(busy, 0)} note="mean over learners" claimed />`;
}

function Weights() {
  const [agreement, weights] = useSelect(({ agreement, head }) => [agreement, head?.weights]);
  const compared = agreement.same + agreement.different;
  if (!compared) return html`<${Figure} id="agreement" label="Weights" value=${html`<small>not compared</small>`} note=${weights ?? ""} />`;
  const split = agreement.different > 0;
  const note = split ? `different in ${count(agreement.different)} of ${some(compared, "version")}` : `at all learners, in ${some(compared, "version")}`;
  const value = html`<${Mark} kind=${split ? "warning" : "ok"} word=${split ? "differ" : "agree"} />`;
  return html`<${Figure} id="agreement" label="Weights" value=${value} note=${note} />`;
}

// What is so as long as the swarm is: no verdict.
function Note() {
  const note = useSelect(({ head }) => head?.note);
  return note && html`<p class="muted small" id="note">${note}</p>`;
}

// --- progress ---

// A stage that was seen once keeps its row: nothing jumps when it ends, and comes again.
function Progress() {
  useTick();
  const [work, pace, version, run] = useSelect(({ head, run }) => [head?.work ?? [], head?.pace, head?.version ?? 0, run]);
  const seen = useRef(new Set());
  for (const { stage } of work) seen.current.add(stage);
  const last = run?.versions ?? 0;
  if (!last && !pace && !seen.current.size) return null;
  return html`<div class="card progress" role="group" aria-labelledby="progress-title">
    <h2 id="progress-title" class="h3">Progress</h2>
    <ul>
      ${last > 0 && html`<${Bar} name="versions" part=${version / last}><${Versions} version=${version} last=${last} pace=${pace} /><//>`}
      ${STAGES.filter((stage) => seen.current.has(stage)).map((stage) => html`<${Stage} key=${stage} name=${stage} work=${work.find((one) => one.stage === stage)} />`)}
    </ul>
    ${pace && html`<p class="muted small" id="forecast"><${Forecast} pace=${pace} run=${run} /></p>`}
  </div>`;
}

function Bar({ name, part, children }) {
  return html`<li class="progress-row"><span>${name}</span>
    <span class="phase-bar" aria-hidden="true"><span style=${{ width: `${Math.min(100 * part, 100)}%` }}></span></span>
    <span class="progress-words">${children}</span></li>`;
}

function Versions({ version, last, pace }) {
  const ends = version < last && pace?.ends != null && html`, until about ${clock(pace.ends, store.now()).slice(0, -3)}`; // without seconds
  return html`${count(version)} of ${count(last)}${ends}`;
}

function Stage({ name, work }) {
  if (!work) return html`<${Bar} name=${name} part=${0}><span class="muted">–</span><//>`;
  const { unit, done, total, ends } = work;
  const counts = unit === "bytes" ? `${bytes(done)} of ${bytes(total)}` : `${count(done)} of ${count(total)} ${unit}`;
  const left = ends == null ? 0 : ends - store.now();
  return html`<${Bar} name=${name} part=${total ? done / total : 0}><${Claimed}>${counts}${left > 0 && done < total && `, about ${age(left)} left`}<//><//>`;
}

const rough = (seconds) => duration(seconds).replace(/(\.\d)\d+/, "$1"); // a forecast is no better

function Forecast({ pace, run }) {
  const sooner = run.accuracy > 0 ? `, or less where the accuracy reaches ${percent(run.accuracy, 0)}` : "";
  const takes = pace.whole == null ? `a version takes ${rough(pace.seconds)}` : `${count(run.versions)} versions take ${rough(pace.whole)}${sooner}`;
  return html`At this pace ${takes}. ${pace.note}`;
}

// --- the averaging round ---

function Round() {
  useTick();
  const round = useSelect((state) => state.round);
  const watched = useRef(new Map());
  useEffect(() => store.subscribe(() => watch(watched.current, store.state.round.learners)), []);
  const stuck = (learner) => store.now() - learner.since > SLOW;
  const sorted = [...round.learners].sort((a, b) => stuck(b) - stuck(a) || (a.name < b.name ? -1 : 1));
  const [list, order] = useKeptOrder(sorted, ({ peer }) => peer);
  const rest = order.slice(ROWS);
  const sums = [...new Set(rest.map((learner) => learner.state))].map((state) => `${rest.filter((learner) => learner.state === state).length} ${state}`);
  return html`<div class="card round" role="group" aria-labelledby="round-title">
    <div class="card-head"><h2 id="round-title" class="h3">Averaging round</h2><p class="small muted last-round"><${LastRound} round=${round} /></p></div>
    ${order.length === 0 && html`<p class="muted small">${round.last_version == null ? "No learner told its phase yet." : "No learner is here now."}</p>`}
    <ul ref=${list}>${order.slice(0, ROWS).map((learner) => html`<${Learner} key=${learner.peer} learner=${learner} seen=${watched.current.get(learner.peer)} />`)}</ul>
    ${rest.length > 0 && html`<p class="muted small">and ${some(rest.length, Role.LEARNER)} more: ${sums.join(", ")}</p>`}
  </div>`;
}

// Remember what the learners did; one entry per view.
function watch(watched, learners) {
  const at = store.now();
  for (const id of watched.keys()) if (!learners.some((learner) => learner.peer === id)) watched.delete(id);
  for (const { peer, state, version } of learners) {
    const seen = watched.get(peer) ?? [];
    seen.push({ at, state, version });
    while (seen.length > 1 && (at - seen[0].at > MEMORY || seen[0].at > at || seen[0].version > version)) seen.shift();
    watched.set(peer, seen);
  }
}

function Learner({ learner, seen }) {
  const held = Math.max(store.now() - learner.since, 0);
  const [pace, part] = useMemo(() => (seen ? [roundSeconds(seen), phaseShares(seen)] : [null, null]), [Math.floor(store.now())]);
  const fast = held < FAST && pace !== null && pace < FAST;
  const shares = fast ? part : null;
  const known = fast || PHASES.includes(learner.state);
  const title = fast
    ? "rounds follow each other faster than one reads: the bars tell the share of each phase"
    : `in this phase, of the round to version ${learner.version + 1}`;
  const clock = fast ? `${duration(pace)} a round` : age(held);
  return html`<li class="phase-row">
    <${PeerLink} id=${learner.peer} name=${learner.name} />
    ${known
      ? html`<ol class="phases">${PHASES.map((phase) => html`<${PhaseBar} key=${phase} phase=${phase}
        place=${fast ? "" : PHASES.indexOf(phase) - PHASES.indexOf(learner.state)} share=${shares?.[phase]} />`)}</ol>`
      : html`<p class="phases-word"><${Mark} kind=${learner.state === Phase.STOPPED ? "lost" : "waiting"} word=${learner.state} /></p>`}
    <span class="number phase-clock" title=${title}>${clock}</span>
  </li>`;
}

// place: 0 is the present phase, before it they are done; share: of the time, when rounds are too fast for a mark.
function PhaseBar({ phase, place, share }) {
  const kind = share !== undefined ? "" : place === 0 ? "here" : place < 0 ? "done" : "";
  return html`<li class=${`phase ${kind}`} aria-current=${kind === "here" ? "step" : undefined}>
    <span class="phase-bar"><span style=${{ width: share === undefined ? "" : `${Math.round(100 * share)}%` }}></span></span>
    <span class="phase-word">${MARKED[kind] && html`<span aria-hidden="true">${MARKED[kind]}</span>`}${phase}${
      share === undefined ? "" : html`<span class="phase-share"> ${percent(share, 0)}</span>`}</span>
  </li>`;
}

function roundSeconds(seen) {
  const [first, last] = [seen[0], seen.at(-1)];
  const rounds = last.version - first.version;
  return rounds > 1 ? (last.at - first.at) / rounds : null;
}

function phaseShares(seen) {
  const known = seen.filter(({ state }) => PHASES.includes(state));
  return Object.fromEntries(PHASES.map((phase) => [phase, known.filter(({ state }) => state === phase).length / Math.max(known.length, 1)]));
}

function LastRound({ round }) {
  const members = useSelect(({ peers }) => round.last_members.map((id) => peers.get(id)?.name ?? `${id.slice(0, 10)}…`));
  if (round.last_version == null) return "no round has ended yet";
  const shown = members.slice(0, MEMBERS).join(", ") + (members.length > MEMBERS ? ` and ${members.length - MEMBERS} more` : "");
  return html`last: version ${count(round.last_version)} with ${some(members.length, "member")}<span class="c-mid"> (${shown})</span>${" "}
    in ${duration(round.last_seconds)}, <${Age} at=${round.last_at} />`;
}

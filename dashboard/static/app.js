// The page: takes views from /stream and writes them down. A view tells what changed; a full one replaces everything.
// What peers wrote reaches the page as text only (textContent), never as markup.

import { Bars, Curve, Rows, element } from "./chart.js";
import { clock, count, duration, figure, percent, some } from "./format.js";

const QUIET = 10; // seconds without news before the page says so
const LINES = 200;
const ROLES = ["learner", "sampler", "evaluator", "seed", "observer"];
const VERDICTS = ["admit", "stale", "duplicate", "over-quota", "malformed", "untrusted"];
const BINS = 24;

const at = (id) => document.getElementById(id);
const page = { view: null, offset: 0, came: performance.now(), peers: new Map(), rows: new Map(), lines: new Map() };

const write = (id, text) => {
  const node = at(id);
  if (node.textContent !== text) node.textContent = text;
};
const now = () => Date.now() / 1000 + page.offset;

const versions = (value) => `${value.toFixed(1)} versions`;
const curves = {
  reward: new Curve(at("curves"), { title: "Reward", note: "mean over the trained groups" }),
  accuracy: new Curve(at("curves"), { title: "Held-out accuracy", note: "greedy, exact match", range: [0, 1], write: percent }),
  kl: new Curve(at("curves"), { title: "KL, sampler to learner", note: "nats per token" }),
  ess: new Curve(at("curves"), { title: "Effective sample size", note: "share of a group, 1 is all of it", range: [0, 1], write: (value) => percent(value, 0) }),
  lag_versions: new Curve(at("curves"), { title: "Lag of the trained groups", note: "mean", write: versions }),
  grad_norm: new Curve(at("curves"), { title: "Gradient norm", note: "before clipping" }),
};
const lagVersions = new Bars(at("bars"), "Lag at training", "trained groups by lag in versions");
const lagSeconds = new Bars(at("bars"), "Age at training", "trained groups by age of their policy, up to … seconds");
const verdicts = new Rows(at("bars"), "Verdicts", "each delivery gets exactly one");

function take(view) {
  page.offset = view.now - Date.now() / 1000;
  page.came = performance.now();
  page.view = view;
  if (view.full) for (const kept of [page.peers, page.lines]) kept.clear();
  for (const peer of view.peers) page.peers.set(peer.id, peer);
  for (const line of view.events) {
    page.lines.delete(line.id);
    page.lines.set(line.id, line);
  }
  while (page.lines.size > LINES) page.lines.delete(page.lines.keys().next().value);
  for (const [name, curve] of Object.entries(curves)) curve.update(view.series[name] ?? [], view.full);
  headline(view);
  bars(view);
  if (view.full || view.events.length) events();
  tick();
}

function headline({ run, head, agreement }) {
  document.title = `${run.name}, version ${head.version} · swarm`;
  write("run", run.name);
  write("about", `${run.task} · ${run.model} · ${run.objective}${run.private ? " · private" : ""}`);
  write("version", count(head.version));
  const { first, last } = head.accuracy;
  write("accuracy", last ? percent(last[1]) : "–");
  write("accuracy-note", !last ? "not evaluated yet" : first[0] === last[0] ? `at version ${last[0]}` : `at version ${last[0]}, from ${percent(first[1])}`);
  write("reward", figure(head.reward));
  write("trained", `${some(head.trained, "group")} trained`);
  write("groups", figure(head.groups_per_second));
  write("tokens", `${count(head.tokens_per_second)} tokens/s sampled`);
  write("busy", head.busy == null ? "–" : `${percent(head.busy, 0)} busy`);
  const compared = agreement.same + agreement.different;
  const same = agreement.different ? `weights differed in ${agreement.different} of ${compared} versions` : `same weights in all ${compared} compared versions`;
  write("agreement", compared ? same : "weights not compared yet");
}

function status(peer) {
  if (peer.gone) return peer.gone;
  return peer.beating && now() - peer.heard > page.view.run.patience ? "lost" : "alive";
}

const COLUMNS = [
  ["", (peer) => [["name", peer.name], ["role", peer.role]]],
  ["", (peer, state) => [
    ["mark", { alive: "●", lost: "◌", left: "–" }[state]],
    ["word", `\u00a0${state === "alive" ? peer.state || "here" : state}`],
  ]],
  ["number", (peer) => (!works(peer) ? [["faint", "–"]] : [["", count(behind(peer))], ["faint", age(peer)]])],
  ["number mid", (peer) => [["", works(peer) ? count(peer.done) : "–"]]],
  ["number wide", (peer) => [["", works(peer) ? count(peer.refused) : "–"]]],
  ["number wide", (peer, state) => [["", state === "alive" && works(peer) ? `${figure(peer.rate)}/s` : "–"]]],
  ["number wide", (peer, state) => [["", state === "alive" && peer.tokens ? count(peer.tokens) : "–"]]],
  ["number wide", (peer, state) => [["", state === "alive" && works(peer) ? percent(peer.busy, 0) : "–"]]],
  ["number wide", (peer) => [["", peer.since == null ? "–" : duration(now() - peer.since)]]],
  ["number mid", (peer) => [["", `${duration(now() - peer.heard)} ago`]]],
];

const works = (peer) => peer.version != null;
const behind = (peer) => Math.max(page.view.head.version - peer.version, 0);
const age = (peer) => (peer.released == null ? "" : ` ${duration(now() - peer.released)}`);

function row(peer) {
  let known = page.rows.get(peer.id);
  if (!known) {
    known = element("tr");
    for (const [kind] of COLUMNS) known.append(element("td", { class: kind }));
    known.title = peer.id;
    page.rows.set(peer.id, known);
  }
  const state = status(peer);
  known.className = state;
  COLUMNS.forEach(([kind, cells], place) => fill(known.children[place], cells(peer, state)));
  const window = page.view.run.window.versions;
  known.children[2].classList.toggle("behind", state === "alive" && works(peer) && behind(peer) > window / 2);
  return known;
}

function fill(cell, parts) {
  while (cell.children.length > parts.length) cell.lastChild.remove();
  parts.forEach(([kind, text], place) => {
    const part = cell.children[place] ?? cell.appendChild(element("span"));
    if (part.className !== kind) part.className = kind;
    if (part.textContent !== text) part.textContent = text;
  });
}

function peers() {
  const order = [...page.peers.values()].sort((a, b) => ROLES.indexOf(a.role) - ROLES.indexOf(b.role) || (a.name < b.name ? -1 : 1));
  const body = at("peers");
  order.forEach((peer, place) => {
    const here = row(peer);
    if (body.children[place] !== here) body.insertBefore(here, body.children[place] ?? null);
  });
  while (body.children.length > order.length) body.lastChild.remove();
  for (const id of page.rows.keys()) if (!page.peers.has(id)) page.rows.delete(id);
  at("no-peers").hidden = order.length > 0;
  const alive = order.filter((peer) => status(peer) === "alive");
  const missing = order.filter((peer) => status(peer) === "lost").length;
  write("alive", `${alive.length}`);
  const roles = ROLES.map((role) => [role, alive.filter((peer) => peer.role === role).length]).filter(([, number]) => number);
  write("roles", roles.map(([role, number]) => some(number, role)).concat(missing ? [`${missing} lost`] : []).join(" · "));
}

function bars({ lag, run, verdicts: counts }) {
  const most = Math.max(run.window.versions, ...lag.versions.map(([lag]) => lag));
  const width = Math.ceil((most + 1) / BINS);
  const bins = Array.from({ length: Math.ceil((most + 1) / width) }, (_, place) => [String(place * width), 0]);
  for (const [versions, groups] of lag.versions) bins[Math.floor(versions / width)][1] += groups;
  const total = lag.versions.reduce((sum, row) => sum + row[1], 0);
  const mean = lag.versions.reduce((sum, row) => sum + row[0] * row[1], 0) / total;
  const edge = (run.window.versions + 1) / width;
  lagVersions.update(bins, { place: edge, text: `window: ${run.window.versions}` }, total ? `mean ${figure(mean)}` : "–");
  const window = run.window.seconds;
  const powers = lag.seconds.map(([bound]) => Math.log2(bound));
  const low = Math.min(0, ...powers);
  const high = Math.max(Math.ceil(Math.log2(window)), ...powers);
  const ages = Array.from({ length: high - low + 1 }, (_, place) => [short(2 ** (low + place)), 0]);
  for (const [bound, groups] of lag.seconds) ages[Math.round(Math.log2(bound) - low)][1] += groups;
  const oldest = lag.seconds.length ? `up to ${duration(lag.seconds.at(-1)[0])}` : "–";
  lagSeconds.update(ages, { place: Math.log2(window) - low + 1, text: `window: ${duration(window)}` }, oldest);
  const rows = VERDICTS.map((verdict) => [verdict === "admit" ? "admitted" : verdict, counts[verdict] ?? 0, verdict === "admit" ? "" : "refused"]);
  const judged = rows.reduce((sum, row) => sum + row[1], 0);
  verdicts.update(rows, judged ? `${percent(rows[0][1] / judged)} admitted` : "–");
}

const short = (bound) => (bound >= 3600 ? `${+(bound / 3600).toFixed(1)}h` : bound >= 120 ? `${Math.round(bound / 60)}m` : String(+bound.toPrecision(2)));

function events() {
  const rows = [...page.lines.values()].reverse().map((line) => {
    const item = element("li", { class: line.level });
    const mark = element("span", { class: "mark" }, { warning: "▲", error: "✕" }[line.level] ?? "·");
    mark.setAttribute("aria-label", line.level);
    mark.setAttribute("role", "img");
    item.append(element("time", {}, clock(line.at)), mark, element("span", { class: "text" }, line.text));
    item.append(element("span", { class: "count" }, line.count > 1 ? `and ${count(line.count - 1)} like it` : ""));
    return item;
  });
  at("events").replaceChildren(...rows);
}

function tick() {
  const gap = (performance.now() - page.came) / 1000;
  const quiet = gap + (page.view?.quiet ?? 0);
  const live = page.view && quiet < QUIET;
  at("link").className = `link ${live ? "" : page.view ? "quiet" : "waiting"}`;
  document.querySelector("#link .mark").textContent = live ? "●" : page.view ? "▲" : "◌";
  const cause = gap >= QUIET ? "this page has lost its peer" : "the swarm is silent";
  write("link-text", live ? "live" : page.view ? `nothing heard for ${duration(Math.floor(quiet))}: ${cause}` : "connecting");
  if (!page.view) return;
  const { released } = page.view.head;
  write("version-age", released == null ? "no release seen yet" : `released ${duration(now() - released)} ago`);
  peers();
}

const stream = new EventSource("/stream");
stream.addEventListener("view", (message) => take(JSON.parse(message.data)));
stream.addEventListener("error", () => {
  if (stream.readyState === EventSource.CLOSED) setTimeout(() => location.reload(), 5000);
});
setInterval(tick, 1000);

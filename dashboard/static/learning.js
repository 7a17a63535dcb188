// Does it learn, and are its importance weights healthy: small multiples over one axis, by policy version or by time.

import { html, useRef, useState } from "./html.js";
import { Curve, save } from "./curve.js";
import { figure, percent } from "./format.js";
import { store, useSelect } from "./store.js";
import { Choice, Section } from "./ui.js";

const share = (value) => percent(value, 0);
const CURVES = [
  { name: "reward", title: "Reward", note: "mean over the trained groups", write: figure },
  { name: "accuracy", title: "Held-out accuracy", note: "greedy, exact match", write: percent, range: [0, 1] },
  { name: "kl", title: "KL, sampler to learner", note: "nats per token, groups that teach", write: figure },
  { name: "ess", title: "Effective sample size", note: "share of a group", write: share, range: [0, 1] },
  { name: "weight_var", title: "Weight variance", note: "importance weights", write: figure, log: true },
  { name: "weight_max", title: "Weight maximum", note: "importance weights", write: figure, log: true },
  { name: "grad_norm", title: "Gradient norm", note: "before clipping", write: figure, log: true },
  { name: "entropy", title: "Entropy", note: "nats per token, groups that teach", write: figure },
  { name: "length", title: "Completion length", note: "mean, in tokens", write: figure },
  { name: "flat", title: "Zero-advantage groups", note: "all rewards equal", write: share, range: [0, 1] },
  { name: "zero", title: "Zero-weight samples", note: "cut by trust region", write: percent },
  { name: "lag_versions", title: "Lag of the trained groups", note: "mean, in versions", write: figure },
];
const SET = /^set_(.+)$/; // curves of evaluation sets
const SAMPLED = /^(mean|pass)_at_(\d+)$/; // curves of an evaluation with samples
const WINDOWS = [["900", "15 min"], ["3600", "1 h"], ["21600", "6 h"], ["", "all"]];
const AXES = [["version", "by version"], ["time", "by time"]];

export function Learning() {
  const [by, setBy] = useState("version");
  const [window, setWindow] = useState("");
  const plots = useRef(new Map());
  const curves = useSelect(({ series }) => [...series.keys()].filter((name) => SAMPLED.test(name) || SET.test(name)).sort().join()).split(",").filter(Boolean);
  const shown = CURVES.flatMap((spec) => (spec.name === "accuracy" ? [spec, ...curves.map(evaluated)] : [spec]));
  const range = useSelect((state) => bounds(state, by, Number(window)));
  const query = window ? `&window=${window}` : "";
  const saveAll = () => save(shown.map(({ name }) => plots.current.get(name)).filter(Boolean), "learning");
  const tools = html`
    <${Choice} label="Horizontal axis" value=${by} options=${AXES} onChange=${setBy} />
    <${Choice} label="Window" value=${window} options=${WINDOWS} onChange=${setWindow} />
    <a class="button" href=${store.url(`api/series.csv${window ? `?window=${window}` : ""}`)} download="learning.csv">all as CSV</a>
    <button type="button" onClick=${saveAll}>all as PNG</button>`;
  return html`<${Section} id="learning" title="Learning" tools=${tools}>
    <div class="curves" id="curves">${shown.map((spec) => html`<${Curve} key=${spec.name} spec=${spec} by=${by} range=${range} plots=${plots.current}
      csv=${store.url(`api/series.csv?name=${spec.name}${query}`)} />`)}</div>
  <//>`;
}

function evaluated(name) {
  if (SET.test(name)) return { name, title: SET.exec(name)[1], note: "evaluation set, greedy", write: percent, range: [0, 1] };
  const [, kind, k] = SAMPLED.exec(name);
  return { name, title: `Held out, ${kind}@${k}`, note: kind === "mean" ? "sampled, mean" : `sampled, one of ${k} right`, write: percent, range: [0, 1] };
}

// [low, high] of the horizontal axis, the same for all curves; a window counts back from the newest point.
function bounds({ series }, by, seconds) {
  const known = CURVES.map(({ name }) => series.get(name)).filter((points) => points?.length);
  if (!known.length) return [0, 1];
  const last = Math.max(...known.map((points) => points.at(-1)[1]));
  const place = by === "time" ? 1 : 0;
  const inside = known.map((points) => (seconds ? points.find((point) => point[1] >= last - seconds) : points[0])).filter(Boolean);
  const low = by === "time" && seconds ? last - seconds : Math.min(...inside.map((point) => point[place]));
  const high = Math.max(...known.map((points) => points.at(-1)[place]));
  return [low, Math.max(high, low + 1)];
}

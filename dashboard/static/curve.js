// One curve drawn by uPlot: its cursor goes along with all others, its figures read as text, its picture can be saved.
//
// A curve is drawn when its points, its range, its width or the theme changed and it is in or near the viewport; drawings stand
// in a queue, one per task, so that many curves that change at once never make one long task.

import uPlot from "./vendor/uplot-1.6.32.js";
import { html, useContext, useEffect, useRef } from "./html.js";
import { clock, count, day } from "./format.js";
import { Near, store, useSelect } from "./store.js";
import { colour, memo, useNear, useTheme, useWidth } from "./ui.js";

const TALL = 150; // CSS pixels, as in style.css; on a phone it is less
const SPREAD = 200; // largest over smallest value from which on a logarithmic scale reads better
const MARGIN = { axis: 46, floor: 26 };
const SCALE = 2; // of a saved picture: sharp in a paper

const queue = new Map();
let timer = 0;

function later(key, draw) {
  queue.set(key, draw);
  timer ||= setTimeout(next);
}

const unseen = new Map(); // what nobody scrolled to yet: drawn at last when the dashboard is printed
addEventListener("beforeprint", () => unseen.forEach((draw) => draw()));

function next() {
  timer = 0;
  const [first] = queue;
  if (!first) return;
  queue.delete(first[0]);
  first[1]();
  if (queue.size) timer ||= setTimeout(next);
}

// spec: {name, title, note, write, range, log}; by: "version" or "time"; range: [low, high] of x; plots: name -> what can be saved.
export const Curve = memo(function Curve({ spec, by, range, plots, csv }) {
  const points = useSelect(({ series }) => series.get(spec.name)) ?? NONE;
  const [node, near] = useNear();
  const section = useContext(Near);
  const [value, line] = [useRef(null), useRef(null)];
  const plot = useRef(null);
  const theme = useTheme();
  const width = useWidth(node);
  const log = Boolean(spec.log) && wide(points);
  const label = `${spec.title}, ${spec.note}`;
  const shown = near && section;

  useEffect(() => {
    if (!width) return undefined;
    const texts = { value: value.current, line: line.current };
    const draw = () => {
      const { current } = plot;
      if (!current || current.key !== `${by} ${log} ${theme}`) plot.current = make(node.current, { spec, by, log, theme, width, texts, old: current });
      plot.current.update(points, range, width, node.current.clientHeight);
      plots.set(spec.name, plot.current);
      node.current.dataset.drawn = theme;
    };
    if (shown) later(spec.name, draw);
    else unseen.set(spec.name, draw);
    return () => queue.delete(spec.name) || unseen.delete(spec.name);
  }, [points, range, width, theme, by, log, shown]);
  useEffect(() => () => {
    plot.current?.chart.destroy();
    plots.delete(spec.name);
  }, []);

  return html`<div class="card curve" data-curve=${spec.name}>
    <div class="card-head"><h3>${spec.title}</h3><span class="value" ref=${value}></span></div>
    <div class="curve-line small">
      <p class="muted note"><span ref=${line}></span><span>${spec.note}${log ? ", log scale" : ""}</span></p>
      ${points.length > 0 && html`<a href=${csv} download=${`${spec.name}.csv`} aria-label=${`${spec.title} as CSV`}>CSV</a>`}
      <button type="button" aria-label=${`${spec.title} as PNG`} onClick=${() => plot.current && save([plot.current], spec.name)}>PNG</button>
    </div>
    <div ref=${node} class="plot" role="img" tabindex="0"
      aria-label=${points.length ? `${label}: ${describe(points, spec)}; the arrow keys move the cursor` : `${label}: nothing yet`}
      onKeyDown=${(event) => step(plot.current, event)} onBlur=${() => plot.current?.chart.setCursor({ left: -10, top: -10 }, true, true)}>
      ${points.length === 0 && html`<p class="plot-empty muted small">nothing yet</p>`}
    </div>
  </div>`;
});

const NONE = [];

function wide(points) {
  let [low, high] = [Infinity, 0];
  for (const [, , value] of points) {
    if (value <= 0) return false;
    low = Math.min(low, value);
    high = Math.max(high, value);
  }
  return high / low > SPREAD;
}

function describe(points, { write }) {
  const values = points.map((point) => point[2]);
  return `${write(values.at(-1))} at version ${points.at(-1)[0]}, between ${write(Math.min(...values))} and ${write(Math.max(...values))} over ${points.length} points`;
}

function step(plot, event) {
  const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (!plot || !move || !plot.points.length) return;
  event.preventDefault();
  const { chart } = plot;
  const [xs] = chart.data;
  const here = chart.cursor.idx ?? (move < 0 ? xs.length : -1);
  const spot = Math.max(Math.min(here + move, xs.length - 1), 0);
  chart.setCursor({ left: chart.valToPos(xs[spot], "x"), top: 10 }, true, true);
}

// --- uPlot ---

function make(node, { spec, by, log, theme, width, texts, old }) {
  old?.chart.destroy();
  const plot = { key: `${by} ${log} ${theme}`, spec, points: NONE };
  const accent = colour("accent");
  const say = () => {
    const point = plot.points[plot.chart?.cursor.idx];
    const last = plot.points.at(-1);
    texts.value.textContent = point ? spec.write(point[2]) : last ? spec.write(last[2]) : "–";
    texts.line.textContent = point ? `version ${count(point[0])} · ${clock(point[1], store.now())}` : "";
    texts.line.nextSibling.hidden = Boolean(point);
  };
  const axis = { stroke: colour("muted"), font: `11px ${getComputedStyle(document.body).fontFamily}`, grid: { stroke: colour("grid"), width: 1 }, ticks: { show: false } };
  plot.chart = new uPlot(
    {
      width, height: TALL, legend: { show: false }, padding: [8, 6, 0, 0],
      cursor: { y: false, drag: { x: false, y: false }, points: { size: 7, fill: accent, stroke: colour("card"), width: 2 }, sync: { key: "learning", scales: ["x", null] } },
      scales: { x: { time: by === "time" }, y: log ? { distr: 3 } : { range: (chart, low, high) => span(spec.range, low, high) } },
      axes: [
        { ...axis, grid: { show: false }, size: MARGIN.floor, gap: 4, space: by === "time" ? 60 : 46,
          incrs: by === "time" ? undefined : WHOLE, values: by === "time" ? times : (chart, ticks) => ticks.map(count) },
        { ...axis, size: MARGIN.axis, gap: 4, space: log ? 18 : 34, values: (chart, ticks) => ticks.map((tick) => (tick == null ? "" : short(tick))) },
      ],
      series: [{}, {
        stroke: accent, width: 1.6, fill: log ? undefined : `color-mix(in srgb, ${accent} 10%, transparent)`, spanGaps: true,
        points: { size: 5, fill: accent, stroke: accent },
      }],
      hooks: { setCursor: [say] },
    },
    [[], []], node,
  );
  plot.chart.root.setAttribute("aria-hidden", "true");
  plot.update = (points, range, wide, tall) => {
    const inside = points.filter((point) => place(point, by) >= range[0] && place(point, by) <= range[1]);
    if (by === "time") inside.sort((a, b) => a[1] - b[1]);
    plot.points = inside;
    if (plot.chart.width !== wide || plot.chart.height !== tall) plot.chart.setSize({ width: wide, height: tall });
    plot.chart.batch(() => {
      plot.chart.setData([inside.map((point) => place(point, by)), inside.map((point) => point[2])], false);
      plot.chart.setScale("x", { min: range[0], max: range[1] });
    });
    say();
  };
  return plot;
}

const WHOLE = [1, 2, 5].flatMap((step) => [0, 1, 2, 3, 4, 5, 6, 7].map((power) => step * 10 ** power)).sort((a, b) => a - b);
const place = (point, by) => (by === "time" ? point[1] : point[0]);

// The time of day; midnight is written as the day that begins.
function times(chart, ticks, axis, space, increment) {
  return ticks.map((tick) => (clock(tick) === "00:00:00" ? day(tick) : clock(tick).slice(0, increment < 60 ? 8 : 5)));
}

function span(range, low, high) {
  if (range) return range;
  if (low == null) return [0, 1];
  const [floor, top] = [Math.min(low, 0), Math.max(high, 0)];
  return uPlot.rangeNum(floor, top === floor ? floor + 1 : top, { min: { pad: 0, soft: 0, mode: 1 }, max: { pad: 0.08, soft: 0, mode: 1 } });
}

function short(value) {
  if (Math.abs(value) >= 100_000) return value.toExponential(1);
  if (Math.abs(value) >= 10000) return `${+(value / 1000).toPrecision(3)}k`;
  return Math.abs(value) > 0 && Math.abs(value) < 0.001 ? value.toExponential(0) : String(+value.toPrecision(4));
}

// --- pictures ---

// Draw plots with their titles on one sheet in the dashboard's colours and hand it over as a file.
export function save(plots, name) {
  const columns = Math.min(plots.length, 3);
  const [wide, tall] = [Math.max(...plots.map(({ chart }) => chart.width)) + 32, Math.max(...plots.map(({ chart }) => chart.height)) + 58];
  const sheet = document.createElement("canvas");
  [sheet.width, sheet.height] = [wide * columns * SCALE, tall * Math.ceil(plots.length / columns) * SCALE];
  const pen = sheet.getContext("2d");
  pen.scale(SCALE, SCALE);
  pen.fillStyle = colour("card");
  pen.fillRect(0, 0, sheet.width, sheet.height);
  const family = getComputedStyle(document.body).fontFamily;
  plots.forEach(({ chart, spec, points }, number) => {
    const [left, top] = [(number % columns) * wide + 16, Math.floor(number / columns) * tall + 14];
    pen.fillStyle = colour("ink");
    pen.font = `600 14px ${family}`;
    pen.fillText(`${spec.title}${points.length ? `: ${spec.write(points.at(-1)[2])}` : ""}`, left, top + 12);
    pen.fillStyle = colour("muted");
    pen.font = `11px ${family}`;
    pen.fillText(`${spec.note}; ${store.state.run.name}, to version ${store.state.head.version}`, left, top + 29, wide - 24);
    pen.drawImage(chart.ctx.canvas, left, top + 36, chart.width, chart.height);
  });
  sheet.toBlob((blob) => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(blob);
    link.download = `${name}.png`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000); // the browser has read it by then
  }, "image/png");
}

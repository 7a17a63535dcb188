// Line and bar charts in SVG, drawn anew when their figures change. Sizes follow the card, texts stay as large as they are.

import { figure } from "./format.js";

const NS = "http://www.w3.org/2000/svg";
const HEIGHT = 150;
const EDGE = { left: 40, right: 10, top: 10, bottom: 20 };

export function element(tag, attributes = {}, text = "") {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (text) node.textContent = text;
  return node;
}

function shape(parent, tag, attributes, text) {
  const node = document.createElementNS(NS, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (text != null) node.textContent = text;
  parent.append(node);
  return node;
}

function card(parent, title, note) {
  const box = element("div", { class: "card chart" });
  const top = element("div", { class: "top" });
  const value = element("span", { class: "value" });
  top.append(element("h3", {}, title), value);
  const line = element("p", { class: "muted note" }, note);
  const svg = document.createElementNS(NS, "svg");
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", title);
  box.append(top, line, svg);
  parent.append(box);
  return { box, value, line, svg };
}

function steps(low, high, most) {
  const rough = (high - low) / most || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= rough * 0.999);
  const ticks = [];
  for (let tick = Math.ceil(low / step - 1e-9) * step; tick <= high + step * 1e-6; tick += step) ticks.push(Math.abs(tick) < step / 2 ? 0 : tick);
  return ticks;
}

function above(low, high) {
  const [first, second] = steps(low, high, 3);
  const step = second - first || high - low;
  return first + Math.ceil((high - first) / step - 1e-9) * step;
}

function short(value) {
  if (Math.abs(value) >= 10000) return `${+(value / 1000).toFixed(1)}k`;
  return Math.abs(value) > 0 && Math.abs(value) < 0.001 ? value.toExponential(0) : String(+value.toPrecision(4));
}

class Chart {
  constructor(parent, title, note) {
    Object.assign(this, card(parent, title, note));
    new ResizeObserver(() => this.draw()).observe(this.box);
  }

  begin() {
    this.svg.replaceChildren();
    this.width = Math.max(this.svg.clientWidth, 120);
    this.svg.setAttribute("viewBox", `0 0 ${this.width} ${HEIGHT}`);
  }

  grid(ticks, y) {
    for (const tick of ticks) {
      shape(this.svg, "line", { class: "gridline", x1: EDGE.left, x2: this.width - EDGE.right, y1: y(tick), y2: y(tick) });
      shape(this.svg, "text", { x: EDGE.left - 6, y: y(tick) + 4, "text-anchor": "end" }, short(tick));
    }
  }
}

export class Curve extends Chart {
  // range: fixed [low, high] or null; write: how a value reads; limit: a horizontal line.
  constructor(parent, { title, note, range = null, write = figure }) {
    super(parent, title, note);
    Object.assign(this, { range, write, note, points: new Map(), sorted: [] });
    this.svg.addEventListener("pointermove", (move) => this.point(move));
    this.svg.addEventListener("pointerleave", () => this.point(null));
  }

  update(points, full) {
    if (full) this.points.clear();
    for (const [version, value] of points) this.points.set(version, value);
    if (!points.length && !full) return;
    this.sorted = [...this.points].sort((a, b) => a[0] - b[0]);
    this.draw();
  }

  draw() {
    this.begin();
    const rows = this.sorted;
    this.value.textContent = rows.length ? this.write(rows.at(-1)[1]) : "–";
    if (!rows.length) {
      shape(this.svg, "text", { x: this.width / 2, y: HEIGHT / 2, "text-anchor": "middle" }, "nothing yet");
      return;
    }
    const values = rows.map((row) => row[1]);
    let [low, high] = this.range ?? [Math.min(0, ...values), Math.max(...values)];
    if (high - low < 1e-9) high = low + 1;
    if (!this.range) high = above(low, high);
    const [first, last] = [rows[0][0], Math.max(rows.at(-1)[0], rows[0][0] + 1)];
    const x = (version) => EDGE.left + ((version - first) / (last - first)) * (this.width - EDGE.left - EDGE.right);
    const y = (value) => EDGE.top + (1 - (Math.min(Math.max(value, low), high) - low) / (high - low)) * (HEIGHT - EDGE.top - EDGE.bottom);
    this.grid(steps(low, high, 3), y);
    for (const tick of steps(first, last, 4).filter(Number.isInteger)) {
      shape(this.svg, "text", { x: x(tick), y: HEIGHT - 4, "text-anchor": x(tick) > this.width - 25 ? "end" : "middle" }, short(tick));
    }
    const path = rows.map(([version, value]) => `${x(version).toFixed(1)},${y(value).toFixed(1)}`);
    shape(this.svg, "path", { class: "area", d: `M${x(first)},${y(low)}L${path.join("L")}L${x(rows.at(-1)[0])},${y(low)}Z` });
    shape(this.svg, "path", { class: "curve", d: `M${path.join("L")}` });
    shape(this.svg, "circle", { class: "end", cx: x(rows.at(-1)[0]), cy: y(rows.at(-1)[1]), r: 3 });
    this.scale = { x, first, last };
    this.cursor = shape(this.svg, "line", { class: "cursor", y1: EDGE.top, y2: HEIGHT - EDGE.bottom, visibility: "hidden" });
  }

  point(move) {
    if (!this.scale || !this.sorted.length) return;
    const { x, first, last } = this.scale;
    this.cursor.setAttribute("visibility", move ? "visible" : "hidden");
    this.line.textContent = this.note;
    if (!move) return;
    const share = (move.offsetX - EDGE.left) / (this.width - EDGE.left - EDGE.right);
    const wanted = first + share * (last - first);
    const near = this.sorted.reduce((best, row) => (Math.abs(row[0] - wanted) < Math.abs(best[0] - wanted) ? row : best));
    for (const end of ["x1", "x2"]) this.cursor.setAttribute(end, x(near[0]));
    this.line.textContent = `version ${near[0]}: ${this.write(near[1])}`;
  }
}

export class Bars extends Chart {
  // bars: [label, groups]; limit: {place, text}, a vertical line at `place` bars from the left.
  update(bars, limit, value) {
    Object.assign(this, { bars, limit });
    this.value.textContent = value;
    this.draw();
  }

  draw() {
    this.begin();
    const total = (this.bars ?? []).reduce((sum, bar) => sum + bar[1], 0);
    if (!total) {
      shape(this.svg, "text", { x: this.width / 2, y: HEIGHT / 2, "text-anchor": "middle" }, "nothing yet");
      return;
    }
    const high = Math.max(...this.bars.map((bar) => bar[1]));
    const slot = (this.width - EDGE.left - EDGE.right) / this.bars.length;
    const y = (value) => EDGE.top + (1 - value / high) * (HEIGHT - EDGE.top - EDGE.bottom);
    this.grid(steps(0, high, 3), y);
    const every = Math.ceil(34 / slot);
    this.bars.forEach(([label, groups], place) => {
      const left = EDGE.left + place * slot;
      const tall = groups ? Math.max(HEIGHT - EDGE.bottom - y(groups), 1.5) : 0;
      const bar = shape(this.svg, "rect", { class: "bar", x: left + slot * 0.1, width: slot * 0.8, y: HEIGHT - EDGE.bottom - tall, height: tall, rx: 1.5 });
      shape(bar, "title", {}, `${label}: ${groups} groups`);
      if (place % every === 0) shape(this.svg, "text", { x: left + slot / 2, y: HEIGHT - 4, "text-anchor": "middle" }, label);
    });
    if (!this.limit) return;
    const x = EDGE.left + this.limit.place * slot;
    shape(this.svg, "line", { class: "limit", x1: x, x2: x, y1: EDGE.top, y2: HEIGHT - EDGE.bottom });
    shape(this.svg, "text", { class: "limit-text", x: x - 5, y: EDGE.top + 9, "text-anchor": "end" }, this.limit.text);
  }
}

export class Rows extends Chart {
  // rows: [label, groups, class]; one horizontal bar each, its figure at the end.
  update(rows, value) {
    this.rows = rows;
    this.value.textContent = value;
    this.draw();
  }

  draw() {
    this.begin();
    const rows = this.rows ?? [];
    const high = Math.max(...rows.map((row) => row[1]), 1);
    const [left, right, tall] = [84, 58, (HEIGHT - 6) / Math.max(rows.length, 1)];
    rows.forEach(([label, groups, kind], place) => {
      const middle = 3 + (place + 0.5) * tall;
      const wide = groups ? Math.max((groups / high) * (this.width - left - right), 2) : 0;
      shape(this.svg, "text", { x: left - 10, y: middle + 4, "text-anchor": "end" }, label);
      shape(this.svg, "rect", { class: `bar ${kind}`, x: left, y: middle - 6, width: wide, height: 12, rx: 2 });
      shape(this.svg, "text", { class: "strong", x: left + wide + 7, y: middle + 4 }, groups.toLocaleString("en"));
    });
  }
}

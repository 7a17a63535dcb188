// The heat map peer × time in versions, on a canvas as large as its window: only the rows in view are drawn, however many peers.
//
// Colour is perceptual (mixed in OKLab, on a logarithmic scale up to the admission window); what is beyond the window is red and
// crossed. Pointer and arrow keys read a cell as text. The map is fetched once a slot, and seldom while nobody sees it: a print has it.

import { html, useContext, useEffect, useLayoutEffect, useMemo, useRef, useState } from "./html.js";
import { clock, count, duration, some } from "./format.js";
import { Near, statusOf, store, useSelect } from "./store.js";
import { answered, Choice, colour, Empty, useTheme, useWidth } from "./ui.js";

const ROW = 18; // CSS pixels a peer
const MOST = 22; // rows before the map scrolls
const GAP = 10; // CSS pixels between a name and its cells
const AXIS = 20; // CSS pixels below for the clock
const SHADES = 64;
const LATELY = 6; // columns whose largest lag sorts the rows: by the last alone they would jump
const SEEK = 5; // seconds that a replay moves before the map is asked for anew
const SOONEST = 2; // seconds between two fetches, however short a slot is
const AWAY = 60; // seconds between two fetches while nobody sees it

export function Heat() {
  const [order, setOrder] = useState("lag");
  const [heat, error] = useHeat();
  const names = useSelect(({ peers }) => Object.fromEntries([...peers.values()].map((peer) => [peer.id, peer.name])));
  const blank = useMemo(() => (heat ? null : unfilled(store.state.peers)), [heat, names]);
  const map = heat ?? blank;
  const limit = useSelect(({ run }) => run?.window.versions ?? 1);
  const rows = useMemo(() => arrange(map, names, order), [map, names, order]);
  const options = [["lag", "by lag"], ["name", "by name"]];
  return html`<div class="card heat">
    <div class="card-head"><h3>Lag of each peer, over time</h3><${Choice} label="Order of the rows" value=${order} options=${options} onChange=${setOrder} /></div>
    ${rows.length === 0 ? html`<${Empty}>${error || "No peer with a policy was heard yet."}<//>` : html`<${Sheet} heat=${map} rows=${rows} limit=${limit} />`}
  </div>`;
}

function useHeat() {
  const near = useContext(Near);
  const moment = useSelect(({ replay, served }) => (replay ? Math.floor(served / SEEK) : 0));
  const fetched = useRef(-Infinity);
  const [heat, set] = useState(null);
  const [error, tell] = useState("");
  useEffect(() => {
    let timer = 0;
    let stopped = false;
    const soonest = near ? SOONEST : AWAY;
    const fetchOnce = async () => {
      let slot = soonest;
      fetched.current = performance.now();
      if (!document.hidden) {
        const map = await answered("api/heat");
        if (map) {
          slot = Math.max(map.slot, soonest);
          set(map);
        }
        tell(map ? "" : "The map could not be fetched from the peer; it is asked again.");
      }
      if (!stopped) timer = setTimeout(fetchOnce, 1000 * slot);
    };
    timer = setTimeout(fetchOnce, Math.max(fetched.current + 1000 * soonest - performance.now(), near ? 0 : 1000 * SOONEST));
    return () => {
      stopped = true;
      clearTimeout(timer);
    };
  }, [near, moment]);
  return [heat, error];
}

// A map without a cell, until the first one came: the names are there and nothing moves when it comes.
function unfilled(peers) {
  const known = [...peers.values()].filter((peer) => peer.version != null);
  return { start: store.now(), slot: 1, columns: 1, rows: Object.fromEntries(known.map(({ id }) => [id, [null]])) };
}

function arrange(heat, names, order) {
  const rows = Object.entries(heat.rows).map(([id, cells]) => {
    const lately = cells.slice(-LATELY).filter((lag) => lag != null);
    return { id, name: names[id] ?? `${id.slice(0, 10)}…`, cells, lag: cells.findLast((lag) => lag != null) ?? -1, late: Math.max(...lately, -1), gone: gone(id) };
  });
  const byName = (a, b) => (a.name < b.name ? -1 : 1);
  return rows.sort(order === "name" ? byName : (a, b) => a.gone - b.gone || b.late - a.late || byName(a, b));
}

const gone = (id) => statusOf(store.state.peers.get(id) ?? { gone: "left" }) !== "alive";

function Sheet({ heat, rows, limit }) {
  const [box, canvas] = [useRef(null), useRef(null)];
  const [top, setTop] = useState(0);
  const [cell, setCell] = useState(null);
  const width = useWidth(box);
  const theme = useTheme();
  const paint = useMemo(() => shades(theme), [theme]);
  const label = useMemo(() => Math.min(Math.max(longest(rows), 0.15 * width), width / 2), [rows, width]);
  const tall = Math.min(rows.length, MOST) * ROW;
  const plan = { heat, rows, limit, top, cell, width, label, tall, paint };
  useLayoutEffect(() => {
    if (width) draw(canvas.current, plan);
  });
  const at = (event) => {
    const bounds = canvas.current.getBoundingClientRect();
    const row = Math.floor((event.clientY - bounds.top + top) / ROW);
    const column = Math.floor(((event.clientX - bounds.left - label) / (width - label)) * heat.columns);
    return rows[row] && event.clientY - bounds.top < tall ? { row, column: Math.max(Math.min(column, heat.columns - 1), 0) } : null;
  };
  const move = (event) => {
    const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1], Home: [0, -1e6], End: [0, 1e6] }[event.key];
    if (!step) return;
    event.preventDefault();
    const here = cell ?? { row: Math.floor(top / ROW), column: heat.columns - 1 };
    const row = Math.max(Math.min(here.row + step[0], rows.length - 1), 0);
    setCell({ row, column: Math.max(Math.min(here.column + step[1], heat.columns - 1), 0) });
    const { current } = box;
    if (row * ROW < current.scrollTop) current.scrollTop = row * ROW;
    if ((row + 1) * ROW > current.scrollTop + tall) current.scrollTop = (row + 1) * ROW - tall;
  };
  return html`
    <p class="readout small" aria-live=${cell ? "polite" : "off"}>${cell && rows[cell.row] ? read(plan) : summary(rows, limit)}</p>
    <div ref=${box} class="heat-box" tabindex="0" role="application" aria-roledescription="heat map"
      aria-label="Lag of each peer over time in versions; the arrow keys read its cells"
      style=${{ height: `${tall + AXIS}px` }} onScroll=${(event) => setTop(event.currentTarget.scrollTop)} onKeyDown=${move}
      onPointerMove=${(event) => setCell(at(event))} onPointerLeave=${() => setCell(null)} onBlur=${() => setCell(null)}
      onClick=${(event) => { const hit = at(event); if (hit && event.clientX - canvas.current.getBoundingClientRect().left < label) store.select(rows[hit.row].id); }}>
      <canvas ref=${canvas} class="heat-canvas" aria-hidden="true"></canvas>
      <div style=${{ height: `${(rows.length - Math.min(rows.length, MOST)) * ROW}px` }}></div>
    </div>
    <${Scale} limit=${limit} paint=${paint} />`;
}

function read({ heat, rows, cell, limit }) {
  const { name, cells } = rows[cell.row];
  const lag = cells[cell.column];
  const start = heat.start + cell.column * heat.slot;
  const beyond = lag > limit ? `, beyond the window of ${count(limit)}` : "";
  return html`<strong>${name}</strong>, ${clock(start, store.now())} and the ${duration(heat.slot)} after: ${lag == null ? "nothing heard" : `${some(lag, "version")} behind${beyond}`}`;
}

function summary(rows, limit) {
  const heard = rows.filter((row) => row.lag >= 0 && !row.gone);
  const late = heard.filter((row) => row.lag > limit).length;
  const worst = heard.reduce((most, row) => (row.lag > (most?.lag ?? -1) ? row : most), null);
  if (!worst) return rows.some((row) => row.lag >= 0) ? "No peer with a policy is here now." : "…";
  const level = heard.filter((row) => row.lag <= 1).length;
  const spread = `${count(level)} at most one version behind, ${count(late)} beyond the window`;
  return `${some(heard.length, "peer")} with a policy: ${spread}; furthest is ${worst.name} with ${some(worst.lag, "version")}.`;
}

// --- colours ---

// RGBA words of the ramp, and of what is missing and what is beyond the window.
function shades(theme) {
  const stops = [0, 1, 2, 3, 4].map((place) => colour(`heat-${place}`));
  const strip = document.createElement("canvas");
  [strip.width, strip.height] = [SHADES + 2, 1];
  const brush = strip.getContext("2d", { willReadFrequently: true });
  for (let shade = 0; shade < SHADES; shade++) {
    const place = (shade / (SHADES - 1)) * (stops.length - 1);
    const low = Math.min(Math.floor(place), stops.length - 2);
    brush.fillStyle = `color-mix(in oklab, ${stops[low]} ${100 * (1 - place + low)}%, ${stops[low + 1]})`;
    brush.fillRect(shade, 0, 1, 1);
  }
  [colour("card"), colour("error")].forEach((fill, place) => {
    brush.fillStyle = fill;
    brush.fillRect(SHADES + place, 0, 1, 1);
  });
  const words = new Uint32Array(brush.getImageData(0, 0, SHADES + 2, 1).data.buffer);
  return { theme, words, strip, ink: colour("ink"), muted: colour("muted"), card: colour("card"), line: colour("line") };
}

const shade = (lag, limit) => Math.round((Math.log1p(lag) / Math.log1p(Math.max(limit, 1))) * (SHADES - 1));

// --- drawing ---

const font = () => `12px ${getComputedStyle(document.documentElement).fontFamily}`;
const called = (row) => (row.gone ? `◌ ${row.name}` : row.name);
const ruler = document.createElement("canvas").getContext("2d");

// CSS pixels of the longest name and the gap beside it: names are shown whole, also on a phone.
function longest(rows) {
  ruler.font = font();
  return GAP + Math.ceil(Math.max(...rows.map((row) => ruler.measureText(called(row)).width)));
}

function draw(canvas, plan) {
  const { rows, top, width, label, tall, paint, cell, heat } = plan;
  const ratio = devicePixelRatio || 1;
  [canvas.width, canvas.height] = [Math.round(width * ratio), Math.round((tall + AXIS) * ratio)];
  canvas.style.width = `${width}px`;
  canvas.style.height = `${tall + AXIS}px`;
  canvas.parentNode.dataset.drawn = paint.theme;
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  const first = Math.floor(top / ROW);
  const seen = rows.slice(first, first + Math.ceil(tall / ROW) + 1);
  const shift = first * ROW - top;
  pen.imageSmoothingEnabled = false;
  pen.drawImage(cells(seen, plan), label, shift, width - label, seen.length * ROW);
  pen.fillStyle = paint.card;
  for (let row = 0; row <= seen.length; row++) pen.fillRect(label, shift + row * ROW - 0.5, width - label, 1);
  pen.font = font();
  pen.textBaseline = "middle";
  seen.forEach((row, place) => {
    pen.fillStyle = row.gone ? paint.muted : paint.ink;
    pen.fillText(fit(pen, called(row), label - GAP), 0, shift + (place + 0.5) * ROW);
  });
  marks(pen, seen, plan, shift);
  if (cell) {
    const wide = (width - label) / heat.columns;
    pen.strokeStyle = paint.ink;
    pen.lineWidth = 1.5;
    pen.strokeRect(label + cell.column * wide, cell.row * ROW - top, Math.max(wide, 3), ROW);
  }
  axis(pen, plan);
}

// One pixel a cell; drawImage stretches it.
function cells(seen, { heat, limit, paint }) {
  const small = document.createElement("canvas");
  [small.width, small.height] = [Math.max(heat.columns, 1), Math.max(seen.length, 1)];
  const image = new ImageData(small.width, small.height);
  const words = new Uint32Array(image.data.buffer);
  words.fill(paint.words[SHADES]);
  seen.forEach((row, place) => {
    row.cells.forEach((lag, column) => {
      if (lag != null) words[place * small.width + column] = paint.words[lag > limit ? SHADES + 1 : shade(lag, limit)];
    });
  });
  small.getContext("2d").putImageData(image, 0, 0);
  return small;
}

// Not by colour alone: what is beyond the window is crossed, what was not heard is a thin line.
function marks(pen, seen, { heat, limit, width, label, paint }, shift) {
  const wide = (width - label) / heat.columns;
  const stroke = (colour, paths) => {
    pen.strokeStyle = colour;
    pen.lineWidth = 1;
    pen.beginPath();
    seen.forEach((row, place) => {
      for (let x = 0; x < width - label; x += 6) paths(row.cells[Math.floor((x + 2) / wide)], label + x, shift + place * ROW);
    });
    pen.stroke();
  };
  const line = (x, y, to, end) => {
    pen.moveTo(x, y);
    pen.lineTo(to, end);
  };
  stroke(paint.card, (lag, x, y) => lag > limit && line(x, y + ROW - 3, x + 5, y + 3));
  stroke(paint.line, (lag, x, y) => lag == null && line(x, y + ROW / 2, Math.min(x + 6, width), y + ROW / 2));
}

function axis(pen, { heat, width, label, tall, paint }) {
  pen.fillStyle = paint.card;
  pen.fillRect(0, tall, width, AXIS);
  pen.fillStyle = paint.muted;
  pen.font = `11px ${getComputedStyle(document.documentElement).fontFamily}`;
  const ticks = Math.max(Math.min(Math.floor((width - label) / 110), 8), 2);
  for (let tick = 0; tick <= ticks; tick++) {
    pen.textAlign = tick === 0 ? "left" : tick === ticks ? "right" : "center";
    pen.fillText(clock(heat.start + (tick / ticks) * heat.columns * heat.slot, store.now()), label + (tick / ticks) * (width - label), tall + AXIS / 2 + 2);
  }
  pen.textAlign = "left";
}

function fit(pen, text, most) {
  if (pen.measureText(text).width <= most) return text;
  let length = text.length - 1;
  while (length > 1 && pen.measureText(`${text.slice(0, length)}…`).width > most) length--;
  return `${text.slice(0, length)}…`;
}

function Scale({ limit, paint }) {
  const canvas = useRef(null);
  useLayoutEffect(() => {
    [canvas.current.width, canvas.current.height] = [SHADES, 1];
    canvas.current.getContext("2d").drawImage(paint.strip, 0, 0);
  }, [paint]);
  const ticks = [0, 1, 4, 16, 64, 256, 1024].filter((tick) => tick < limit * 0.6);
  return html`<div class="heat-scale small muted">
    <div class="heat-ramp"><canvas ref=${canvas} aria-hidden="true"></canvas>
      <ul>${ticks.map((tick) => html`<li key=${tick} style=${{ left: `${(100 * shade(tick, limit)) / (SHADES - 1)}%` }}>${tick}</li>`)}
        <li class="heat-end" style=${{ left: "100%" }}>${count(limit)}</li></ul></div>
    <p>versions behind, up to the window of ${count(limit)}</p>
    <p><span class="heat-late" aria-hidden="true"></span>beyond it</p>
    <p><span class="heat-blank" aria-hidden="true"></span>nothing heard</p>
  </div>`;
}

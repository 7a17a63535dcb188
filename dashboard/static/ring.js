// The ring of peers on two canvases: below the peers and their flows, drawn when something changed; above what moves along them.
//
// Learners stand in the middle, all others around them, role by role. A flow's purpose is its colour and the shape that travels on
// it; a dashed line is relayed. Only the biggest flows are drawn. Not handled here: reading the store and the words (network.js).

import { hash } from "./identicon.js";
import { Role, ROLES } from "./protocol.js";

export const PURPOSES = ["rollouts", "weights", "gradients", "other"];
const AROUND = ROLES.filter((role) => role !== Role.LEARNER);
const FLOWS = 80; // lines drawn of each purpose: beyond that nobody tells one from another, and a frame would take too long
const NAMES = 28; // peers up to which all names are written
const SPACING = 11; // pixels between neighbours before another ring is begun
const GAP = 0.04; // of the circle left free between two roles
const TRAVEL = 2600; // milliseconds from one peer to the other
const REACH = 16; // pixels around a peer in which it is pointed at
const STILL = 0.62; // where shapes stand on their line when nothing may move: nearer to the target

// {nodes, lines, names} of what is drawn on `width` x `height` pixels.
export function scene(peers, flows, width, height) {
  const shown = peers.filter(({ status }) => status !== "left");
  const named = shown.length <= NAMES && width >= 560;
  const center = { x: width / 2, y: height / 2, rx: width / 2 - (named ? 124 : 20), ry: height / 2 - 22 };
  const nodes = new Map();
  const learners = shown.filter(({ role }) => role === Role.LEARNER);
  learners.forEach((peer, place) => {
    const angle = (2 * Math.PI * place) / learners.length - Math.PI / 2;
    const far = learners.length === 1 ? 0 : 0.34;
    nodes.set(peer.id, { ...peer, angle, x: center.x + far * center.rx * Math.cos(angle), y: center.y + far * center.ry * Math.sin(angle), size: 9 });
  });
  around(shown, center, nodes);
  const drawable = flows.filter(({ source, target }) => source !== target && nodes.has(source) && nodes.has(target));
  const lines = PURPOSES.flatMap((purpose) => drawable.filter((flow) => flow.purpose === purpose).sort((a, b) => b.rate - a.rate).slice(0, FLOWS))
    .map((flow) => line(flow, nodes.get(flow.source), nodes.get(flow.target), center));
  return { nodes, lines, named, width, height };
}

function around(shown, center, nodes) {
  const groups = AROUND.map((role) => shown.filter((peer) => peer.role === role)).filter(({ length }) => length);
  const known = groups.reduce((sum, { length }) => sum + length, 0);
  const gap = groups.length > 1 ? GAP * known : 0;
  const places = known + gap * groups.length;
  const rings = Math.max(1, Math.ceil((places * SPACING) / (Math.PI * (center.rx + center.ry))));
  const size = Math.max(Math.min((rings * Math.PI * (center.rx + center.ry)) / Math.max(places, 1) / 3, 6), 2.6);
  let [place, number] = [0, 0];
  for (const group of groups) {
    for (const peer of group) {
      const angle = (2 * Math.PI * place) / places - Math.PI / 2;
      const far = 1 - (number++ % rings) * Math.min(0.09, 0.36 / rings);
      nodes.set(peer.id, { ...peer, angle, x: center.x + far * center.rx * Math.cos(angle), y: center.y + far * center.ry * Math.sin(angle), size });
      place++;
    }
    place += gap;
  }
}

// Bent towards the middle, and aside by direction, so that there and back are two lines.
function line(flow, from, to, center) {
  const [dx, dy] = [to.x - from.x, to.y - from.y];
  const long = Math.hypot(dx, dy) || 1;
  const aside = Math.min(10 + long / 18, 26);
  return {
    ...flow, from, to, phase: (hash(flow.source + flow.target, PURPOSES.indexOf(flow.purpose)) % 1000) / 1000,
    x: 0.7 * ((from.x + to.x) / 2) + 0.3 * center.x - (aside * dy) / long, y: 0.7 * ((from.y + to.y) / 2) + 0.3 * center.y + (aside * dx) / long,
    width: Math.max(0.7, Math.min(0.7 + 0.6 * Math.log10(Math.max(flow.rate, 1) / 1000), 3)), moving: flow.rate > 100_000 ? 2 : 1,
  };
}

// The peer at a point, or null.
export function at({ nodes }, x, y) {
  let [best, near] = [null, REACH];
  for (const node of nodes.values()) {
    const far = Math.hypot(node.x - x, node.y - y) - node.size / 2;
    if (far < near) [best, near] = [node, far];
  }
  return best?.id ?? null;
}

export function fit(canvas, width, height) {
  const dense = Math.min(devicePixelRatio || 1, 2);
  if (canvas.width === Math.round(width * dense) && canvas.height === Math.round(height * dense)) return;
  canvas.width = Math.round(width * dense);
  canvas.height = Math.round(height * dense);
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  canvas.getContext("2d").setTransform(dense, 0, 0, dense, 0, 0);
}

const concerns = (line, id) => line.source === id || line.target === id;

// Peers and lines; `chosen` is the peer that is pointed at, the others step back then.
export function drawStill(canvas, { nodes, lines, named, width, height }, colours, chosen) {
  const pen = canvas.getContext("2d");
  pen.clearRect(0, 0, width, height);
  const buckets = new Map();
  for (const line of lines) {
    const front = chosen !== null && concerns(line, chosen);
    const key = [line.purpose, line.relayed, Math.round(2 * line.width), front].join();
    if (!buckets.has(key)) buckets.set(key, { line, front, path: new Path2D() });
    const { path } = buckets.get(key);
    path.moveTo(line.from.x, line.from.y);
    path.quadraticCurveTo(line.x, line.y, line.to.x, line.to.y);
  }
  const crowded = lines.length > 80 ? 0.3 : 0.55;
  for (const { line, front, path } of buckets.values()) {
    pen.globalAlpha = chosen === null ? crowded : front ? 1 : 0.1;
    pen.strokeStyle = colours[line.purpose];
    pen.lineWidth = line.width;
    pen.setLineDash(line.relayed ? [5, 5] : []);
    pen.stroke(path);
  }
  pen.setLineDash([]);
  pen.globalAlpha = 1;
  for (const node of nodes.values()) drawNode(pen, node, colours, node.id === chosen);
  pen.font = colours.font;
  for (const node of nodes.values()) if (node.id === chosen || (chosen === null && named)) drawName(pen, node, colours, width);
}

function drawNode(pen, { x, y, size, role, status }, colours, chosen) {
  pen.beginPath();
  outline(pen, role, x, y, size);
  pen.fillStyle = status === "lost" ? colours.card : role === Role.LEARNER ? colours.accent : role === Role.SAMPLER ? colours.muted : colours.ink;
  pen.strokeStyle = status === "lost" ? colours.warning : colours.card;
  pen.lineWidth = status === "lost" ? 1.8 : 1.2;
  pen.fill();
  pen.stroke();
  if (!chosen) return;
  pen.beginPath();
  pen.arc(x, y, size + 4, 0, 2 * Math.PI);
  pen.strokeStyle = colours.accent;
  pen.lineWidth = 2;
  pen.stroke();
}

function outline(pen, role, x, y, size) {
  if (role === Role.EVALUATOR) pen.rect(x - size, y - size, 2 * size, 2 * size);
  else if (role === Role.SEED) polygon(pen, x, y, 1.3 * size, 4);
  else if (role === Role.OBSERVER) polygon(pen, x, y, 1.3 * size, 3);
  else if (role === Role.AUDITOR) polygon(pen, x, y, 1.2 * size, 6);
  else pen.arc(x, y, size, 0, 2 * Math.PI);
}

function polygon(pen, x, y, size, corners) {
  for (let corner = 0; corner < corners; corner++) {
    const angle = (2 * Math.PI * corner) / corners - Math.PI / 2;
    pen[corner ? "lineTo" : "moveTo"](x + size * Math.cos(angle), y + size * Math.sin(angle));
  }
  pen.closePath();
}

function drawName(pen, { x, y, size, role, angle, name, status }, colours, width) {
  const word = status === "lost" ? `${name} (lost)` : name;
  const wide = pen.measureText(word).width;
  const inside = role === Role.LEARNER;
  const right = Math.cos(angle) >= 0;
  const left = inside ? x - wide / 2 : right ? x + size + 6 : x - size - 6 - wide;
  const base = inside ? y + size + 15 : y + 4;
  const start = Math.max(3, Math.min(left, width - wide - 3));
  pen.lineWidth = 4;
  pen.strokeStyle = colours.card;
  pen.lineJoin = "round";
  pen.strokeText(word, start, base);
  pen.fillStyle = colours.ink;
  pen.fillText(word, start, base);
}

// What travels: a shape for each purpose; with `still` they stand.
export function drawMoving(canvas, { lines, width, height }, colours, chosen, time, still) {
  const pen = canvas.getContext("2d");
  pen.clearRect(0, 0, width, height);
  for (const purpose of PURPOSES) {
    pen.beginPath();
    for (const line of lines) {
      if (line.purpose !== purpose || (chosen !== null && !concerns(line, chosen))) continue;
      for (let number = 0; number < (still ? 1 : line.moving); number++) {
        const t = still ? STILL : (time / TRAVEL + line.phase + number / line.moving) % 1;
        const [a, b, c] = [(1 - t) ** 2, 2 * t * (1 - t), t ** 2];
        shape(pen, purpose, a * line.from.x + b * line.x + c * line.to.x, a * line.from.y + b * line.y + c * line.to.y);
      }
    }
    pen.fillStyle = colours[purpose];
    pen.fill();
  }
}

function shape(pen, purpose, x, y) {
  if (purpose === "weights") pen.rect(x - 2.6, y - 2.6, 5.2, 5.2);
  else if (purpose === "gradients") polygon(pen, x, y, 4.2, 3);
  else {
    pen.moveTo(x + 2.8, y);
    pen.arc(x, y, purpose === "rollouts" ? 2.8 : 1.6, 0, 2 * Math.PI);
  }
}

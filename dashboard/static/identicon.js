// A small picture of a peer's id, so that an eye finds the same peer again: five by five cells, left and right alike, one colour.
// It follows from the id alone, which the transport proves; so does the name. What a peer calls itself is a label.

import { html } from "./html.js";
import { memo } from "./ui.js";

const SIDE = 5;
const HALF = 3; // columns that are drawn from the id; the other two mirror them

// FNV-1a with a final mix: neighbours in the alphabet differ in all bits.
export function hash(text, seed = 0) {
  let value = (2166136261 ^ seed) >>> 0;
  for (let place = 0; place < text.length; place++) value = Math.imul(value ^ text.charCodeAt(place), 16777619);
  value = Math.imul(value ^ (value >>> 16), 0x7feb352d);
  value = Math.imul(value ^ (value >>> 15), 0x846ca68b);
  return (value ^ (value >>> 16)) >>> 0;
}

// {path, hue} of an id; the same on every page.
function drawing(id) {
  const bits = hash(id);
  const filled = (column, row) => (bits >>> (row * HALF + Math.min(column, SIDE - 1 - column))) & 1;
  let path = "";
  for (let row = 0; row < SIDE; row++) {
    for (let column = 0; column < SIDE; column++) {
      let run = 0;
      while (column + run < SIDE && filled(column + run, row)) run++;
      if (run) path += `M${column} ${row}h${run}v1h${-run}z`;
      column += run;
    }
  }
  return { path: path || "M1 1h3v3h-3z", hue: hash(id, 1) % 360 };
}

export const Identicon = memo(function Identicon({ id, size = 18 }) {
  const { path, hue } = drawing(id);
  return html`<svg class="identicon" width=${size} height=${size} viewBox="-0.5 -0.5 6 6" aria-hidden="true" style=${{ "--hue": hue }}><path d=${path} /></svg>`;
});

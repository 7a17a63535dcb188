// Preact, and its `html` without htm's cache: a part without a value is made anew each time.
//
// A kept part points to the first tree in which it was drawn, and so to every row of it, and by their parts to all rows before them:
// the dashboard of a busy swarm would take three megabytes more each minute.

import htm from "./vendor/htm-3.1.1.js";
import { h } from "./vendor/htm-preact-3.1.1.js";

export * from "./vendor/htm-preact-3.1.1.js";

export const html = htm.bind(function (...words) {
  this[0] = 3; // htm's own way to say: not to be kept
  return h(...words);
});

// What happened, newest first: a mark and a word for the level, the time, the sentence, how often. The list has a bounded height;
// names in a sentence open the drawer of the peer that is meant.

import { html, useState } from "./html.js";
import { clock, count } from "./format.js";
import { store, useSelect } from "./store.js";
import { Choice, Empty, Mark, memo, PeerLink, Section } from "./ui.js";

const SHOWN = 120; // lines drawn at once: more than anybody scrolls through; /api/events has them all
const LEVELS = [["all", "All"], ["warning", "Warnings and errors"], ["error", "Errors"]];
const WORDS = { info: "note", warning: "warning", error: "error" };
const PASSES = { all: () => true, warning: ({ level }) => level !== "info", error: ({ level }) => level === "error" };

export function Events() {
  const [level, setLevel] = useState("all");
  const lines = useSelect((state) => state.events.filter(PASSES[level]).slice(0, SHOWN));
  const tools = html`<${Choice} label="Level of the events" value=${level} options=${LEVELS} onChange=${setLevel} />`;
  return html`<${Section} id="events" title="Events" tools=${tools}>
    <div class="card event-box" tabindex="0" role="region" aria-label="Events, newest first">
      ${lines.length ? html`<${EventList} lines=${lines} />` : html`<${Empty}>${level === "all" ? "Nothing has happened yet." : "No event of this level."}<//>`}
    </div>
  <//>`;
}

export function EventList({ lines }) {
  return html`<ol class="event-list">${lines.map((line) => html`<${EventLine} key=${line.id} line=${line} />`)}</ol>`;
}

const EventLine = memo(function EventLine({ line }) {
  const names = useSelect(({ peers }) => line.peers.map((id) => [id, peers.get(id)?.name]).filter(([, name]) => name));
  return html`<li class=${`event ${line.level}`}>
    <time class="muted mono" datetime=${new Date(1000 * line.at).toISOString()}>${clock(line.at, store.now())}</time>
    <${Mark} kind=${line.level} word=${WORDS[line.level]} quiet=${line.level === "info"} />
    <span class="event-text">${linked(line.text, names)}</span>
    ${line.count > 1 && html`<span class="muted small event-count" title=${`said ${count(line.count)} times; this is the newest`}>× ${count(line.count)}</span>`}
  </li>`;
});

// The sentence with the first mention of each name as a link.
function linked(text, names) {
  let parts = [text];
  for (const [id, name] of names) {
    const place = parts.findIndex((part) => typeof part === "string" && part.includes(name));
    if (place < 0) continue;
    const from = parts[place].indexOf(name);
    const around = [parts[place].slice(0, from), html`<${PeerLink} key=${id} id=${id} name=${name} />`, parts[place].slice(from + name.length)];
    parts = [...parts.slice(0, place), ...around, ...parts.slice(place + 1)];
  }
  return parts;
}

// The shell: a bar that stays, and the sections in the order in which a person asks: how is it, what is wrong, how stale, does it
// learn, which peers exchange data, which are here. Each section draws itself from the store; far from the viewport it does so once a second.

import { h, html, render, useEffect, useErrorBoundary, useState } from "./html.js";
import { Events } from "./events.js";
import { age, count, some } from "./format.js";
import { Headline } from "./headline.js";
import { Invite } from "./invite.js";
import { Learning } from "./learning.js";
import { Network } from "./network.js";
import { Peers } from "./peers.js";
import { Problems, Verdict } from "./problems.js";
import { Replay } from "./replay.js";
import { Samples } from "./samples.js";
import { Staleness } from "./staleness.js";
import { Near, start, store, useSelect, useTick } from "./store.js";
import { Mark, Section, useNear } from "./ui.js";

const PLACES = [
  ["now", "Now", Headline],
  ["wrong", "What is wrong", Problems],
  ["staleness", "Staleness", Staleness],
  ["learning", "Learning", Learning],
  ["network", "Network", Network],
  ["peers", "Peers", Peers],
  ["samples", "Samples", Samples],
  ["events", "Events", Events],
  ["invite", "Invite", Invite],
];

function App() {
  const [known, replay] = useSelect((state) => [state.run !== null, state.replay !== null]);
  const [mounted, mount] = useState(0); // nothing is drawn before there is something to tell: then nothing jumps when it comes
  const whole = mounted === PLACES.length;
  useEffect(() => {
    if (known && !whole) setTimeout(() => mount(mounted + 1)); // one section a task: no long one at the start
    if (whole) document.getElementById(location.hash.slice(1))?.scrollIntoView(); // of an address that ends in #peers
  }, [known, mounted]);
  return html`
    <${Bar} />
    <main id="main" tabindex="-1" aria-busy=${!whole}>
      ${known && html`<${Verdict} />`}
      ${replay && html`<${Replay} />`}
      ${PLACES.slice(0, mounted).map(([id, title, draw]) => html`<${Place} key=${id} id=${id} title=${title} draw=${draw} />`)}
    </main>
    ${whole && html`<footer class="muted small">
      Also as JSON: <a href="api/state">state</a>, <a href="api/peers">peers</a>, <a href="api/releases">releases</a>,${" "}
      <a href="api/events">events</a>; described by <a href="openapi.json">OpenAPI</a>, measured at <a href="metrics">metrics</a>.
    </footer>`}`;
}

// Tells what is in it whether anybody sees it, and keeps a section's bug inside the section.
function Place({ id, title, draw }) {
  const [node, near] = useNear();
  const [broken] = useErrorBoundary((error) => console.error(error));
  if (broken) {
    return html`<${Section} id=${id} title=${title}>
      <p class="card empty" role="alert">This part of the dashboard has a bug; the browser's console shows where. Everything else goes on.</p>
    <//>`;
  }
  return html`<div class="place" ref=${node}><${Near.Provider} value=${near}>${h(draw)}<//></div>`;
}

const LINKS = {
  connecting: ["waiting", () => "connecting"],
  mute: ["error", (seconds) => `nothing came for ${age(seconds)}: its peer is gone, or a proxy holds the updates back`],
  live: ["live", () => "live"],
  silent: ["warning", (seconds) => `nothing heard for ${age(seconds)}: the swarm is silent`],
  lost: ["error", (seconds) => `nothing heard for ${age(seconds)}: this dashboard has lost its peer`],
  full: ["error", () => "too many dashboards are open at this peer: close one; this one tries again"],
  replay: ["live", () => "replay"],
  paused: ["paused", () => "paused"],
};

const SAID = { // aloud, once: the seconds beside it go on
  connecting: "connecting", mute: "nothing comes from this dashboard's peer", live: "live", silent: "the swarm is silent", lost: "this dashboard has lost its peer",
  full: "too many dashboards are open at this peer", replay: "replay", paused: "paused",
};

function Bar() {
  const name = useSelect((state) => state.run?.name ?? "swarm");
  return html`<header class="bar">
    <div class="bar-inner">
      <a class="bar-name" href="#now">${name}</a>
      <${Link} />
      <nav aria-label="Sections"><ul>${PLACES.slice(1).map(
        ([id, word]) => html`<li key=${id}><a href=${`#${id}`}>${word}${id === "wrong" && html`<${Alarm} />`}</a></li>`,
      )}</ul></nav>
    </div>
  </header>`;
}

function Link() {
  useTick();
  useSelect((state) => [state.served, state.quiet]);
  const { state, seconds } = store.link();
  const [kind, word] = LINKS[state];
  return html`<p id="link" class=${`link is-${kind}`}><${Mark} kind=${kind} /> <span id="link-text">${word(seconds)}</span></p>
    <p class="sr" role="status">${SAID[state]}</p>`;
}

// How many problems there are, beside the way to them and in the window's title.
function Alarm() {
  const [number, name, version] = useSelect(({ problems, run, head }) => [
    problems.filter((problem) => problem.level !== "info").length, run?.name, head?.version,
  ]);
  useEffect(() => {
    if (name !== undefined) document.title = `${number ? `(${number}) ` : ""}${name}, version ${version} · swarm`;
  }, [number, name, version]);
  return number > 0 && html`<span class="alarm" aria-hidden="true">${count(number)}</span><span class="sr">(${some(number, "problem")})</span>`;
}

start();
render(h(App), document.getElementById("app"));

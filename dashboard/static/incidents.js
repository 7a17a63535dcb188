// What was wrong in the last day: from when to when, and why. Asked for again and again while somebody is near it.

import { html, useContext, useEffect, useState } from "./html.js";
import { duration, some } from "./format.js";
import { Near, useSelect } from "./store.js";
import { Mark, poll, Prose } from "./ui.js";

const AGAIN = 5; // seconds: the peer looks as often
const WORDS = { warning: "warning", error: "broken" };

export function Incidents() {
  const incidents = useIncidents();
  const number = incidents.length ? some(incidents.length, "incident") : "nothing was noticed";
  return html`<details id="incidents" class="card incidents">
    <summary>In the last day: ${number}</summary>
    <ol>${incidents.map((incident) => html`<${Incident} key=${incident.key + incident.begin} incident=${incident} />`)}</ol>
  </details>`;
}

function Incident({ incident: { level, text, cause, begin, end } }) {
  const until = end == null ? "until now" : `to ${moment(end)}, ${duration(Math.max(end - begin, 0))}`;
  return html`<li class="incident">
    <${Mark} kind=${level} word=${WORDS[level]} />
    <div><p class="muted small"><time datetime=${new Date(1000 * begin).toISOString()}>${moment(begin)}</time> ${until}</p>
      <p><${Prose} text=${text} /></p><p class="small"><span class="muted">Cause:</span> <${Prose} text=${cause} /></p></div>
  </li>`;
}

function useIncidents() {
  const near = useContext(Near);
  const moved = useSelect(({ replay, served }) => (replay ? Math.floor(served / AGAIN) : 0));
  const [incidents, set] = useState([]);
  useEffect(() => (near ? poll("api/incidents", 1000 * AGAIN, (all) => set(all.reverse())) : undefined), [near, moved]);
  return incidents;
}

function moment(at) {
  return new Date(1000 * at).toLocaleString("en-GB", { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit", second: "2-digit" });
}

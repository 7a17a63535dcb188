// How to join: the command to copy and a picture of the invite to scan. A dashboard that has no invite to give away says
// how one is made. Copying needs a secure page (https or localhost); elsewhere the text is selected for the person's own keys.

import { html, useEffect, useRef, useState } from "./html.js";
import { some } from "./format.js";
import { store, useSelect, useTick } from "./store.js";
import { Mark, Section } from "./ui.js";

const SHOWN = 2500; // milliseconds for which a button says that it has copied

export function Invite() {
  const invite = useInvite();
  return html`<${Section} id="invite" title="Invite">
    <div class="card invite">${invite ? html`<${Join} invite=${invite} />` : html`<p class="muted">${
      invite === undefined ? "…" : html`This dashboard has no invite to show. Whoever hosts the run makes one with <code>swarm invite</code>.`
    }</p>`}</div>
  <//>`;
}

// The invite that the dashboard shows; null where it shows none, undefined until that is known.
function useInvite() {
  const [invite, setInvite] = useState();
  const opened = useSelect((state) => state.opened);
  useEffect(() => {
    fetch("api/invite").then((answer) => answer.json()).then(setInvite, () => setInvite(null));
  }, [opened]);
  return invite;
}

// The command to send while a new run waits for peers.
export function Word() {
  const invite = useInvite();
  const text = useRef(null);
  return invite && html`<div class="card word-card">
    <p>To send to a <strong>${invite.role}</strong>:</p>
    <div class="copy-box"><code ref=${text} tabindex="0" aria-label="The command to send">${invite.command}</code>
      <${Copy} text=${invite.command} node=${text} word="Copy command" /></div>
  </div>`;
}

function Join({ invite }) {
  const text = useRef(null);
  return html`
    <div class="invite-words">
      <p>Join as a <strong>${invite.role}</strong> from any machine that reaches this one: paste this into its terminal.</p>
      <div class="copy-box">
        <code ref=${text} id="join-command" tabindex="0" aria-label="The command that joins">${invite.command}</code>
        <${Copy} text=${invite.command} node=${text} word="Copy command" />
      </div>
      <p class="small"><${Expiry} at=${invite.expires} /></p>
    </div>
    <figure class="invite-code">
      <img src=${`api/invite.svg?${encodeURIComponent(invite.word)}`} width="148" height="148" alt="QR code of the invite's word" />
      <figcaption class="muted small">the word, to scan</figcaption>
    </figure>`;
}

function Expiry({ at }) {
  useTick();
  if (at == null) return html`<${Mark} kind="ok" word="valid" /> <span class="muted">for as long as one of the addresses in it answers.</span>`;
  const left = at - store.now();
  if (left <= 0) return html`<${Mark} kind="warning" word="expired" /> This invite has expired: make a new one with <code>swarm invite</code>.`;
  const day = new Date(1000 * at).toLocaleString("en-GB", { day: "numeric", month: "long", hour: "2-digit", minute: "2-digit" });
  return html`<${Mark} kind="ok" word="valid" /> <span class="muted">for another ${rest(left)}, until ${day}. Give it only to people who may join.</span>`;
}

function rest(seconds) {
  for (const [size, unit] of [[86400, "day"], [3600, "hour"]]) if (seconds >= 2 * size) return some(Math.floor(seconds / size), unit);
  return some(Math.ceil(seconds / 60), "minute");
}

// A button that copies `text`; where the browser does not let it, it selects `node`, which shows the text.
export function Copy({ text, node, word = "Copy" }) {
  const [done, setDone] = useState("");
  const timer = useRef(0);
  useEffect(() => () => clearTimeout(timer.current), []);
  const copy = async () => {
    setDone((await written(text)) ? "Copied" : select(node.current));
    clearTimeout(timer.current);
    timer.current = setTimeout(() => setDone(""), SHOWN);
  };
  return html`<span class="copy"><button type="button" class="button" onClick=${copy}>${word}</button>
    <span class="small copy-done" role="status">${done && html`<${Mark} kind="ok" word=${done} />`}</span></span>`;
}

async function written(text) {
  if (!navigator.clipboard) return false;
  return navigator.clipboard.writeText(text).then(() => true, () => false);
}

function select(node) {
  const range = document.createRange();
  range.selectNodeContents(node);
  const selection = getSelection();
  selection.removeAllRanges();
  selection.addRange(range);
  return "Selected: copy it with your keys";
}

// The live page: reads the stream of events, and shows one view at a time.

import "./copy.js";
import { clock, fill, make, prose } from "./draw.js";
import { askToExplain, followForm, offerModels } from "./explain.js";
import { showOverview, showPod } from "./overview.js";
import { showShadow } from "./shadow.js";

const VIEWS = ["overview", "pod", "explain", "findings"];
const KEPT_POINTS = 720;
const RETRY_MS = 2000;
const FINDINGS_MS = 10000;

const SHOWN_DECISIONS = 40;

const state = { snapshot: null, points: [], decisions: [], ofSession: null, view: "overview", podId: "" };
// The newest snapshot and decisions that came while the page is paused; null while it is not.
let unseen = null;
const byId = (id) => document.getElementById(id);

function headers() {
  const token = sessionStorage.getItem("token");
  return token ? { Authorization: `Bearer ${token}` } : {};
}

// Calls one method of the router's JSON. Throws an Error with a text for people.
export async function call(method, request) {
  const reply = await fetch(`/api/v1/${method}`, {
    method: "POST",
    headers: { ...headers(), "Content-Type": "application/json" },
    body: JSON.stringify(request),
  });
  const answer = await reply.json();
  if (!reply.ok) throw new Error(answer.error);
  return answer;
}

function say(text, kind = "") {
  const status = byId("status");
  if (status.textContent !== text) status.textContent = text;
  status.className = kind;
}

function take(name, value) {
  if (name === "history") state.points = value;
  if (name === "decisions") (unseen ?? state).decisions = value;
  if (name === "snapshot") {
    (unseen ?? state).snapshot = value;
    if (!state.points.length || value.point.at - state.points.at(-1).at >= 5) state.points.push(value.point);
    if (state.points.length > KEPT_POINTS) state.points.shift();
  }
  if (name === "decisions" && unseen === null) {
    show();
    findSession();
  }
}

// Finds the decisions of the session that is named, among all that the router keeps: the stream has only the last ones.
async function findSession() {
  const { value } = byId("session");
  let found = null;
  if (value) {
    try {
      const { decisions } = await call("ListDecisions", { session_id: value, limit: SHOWN_DECISIONS });
      found = decisions.map((one) => ({ cached_tokens: null, ttft: null, ...one, state: one.state.toLowerCase() }));
    } catch (error) {
      say(error.message, "error");
      return;
    }
  }
  if (byId("session").value !== value || (found ?? state.ofSession) === null) return;
  state.ofSession = found;
  show();
}

// Stops or goes on showing news; the stream is read on, so that the charts have no gap.
function pause() {
  if (unseen === null) {
    unseen = {};
  } else {
    Object.assign(state, unseen);
    unseen = null;
  }
  byId("pause").setAttribute("aria-pressed", String(unseen !== null));
  show();
}

async function read() {
  const reply = await fetch("/api/v1/live", { headers: headers() });
  if (reply.status === 401 || reply.status === 403) {
    // Before any token was given, that one is needed says enough.
    const why = (await reply.json()).error;
    byId("login-why").textContent = sessionStorage.getItem("token") ? `The token does not do: ${why}.` : "";
    byId("login").hidden = false;
    byId("main").hidden = true;
    say("not let in", "error");
    return false;
  }
  if (!reply.ok) throw new Error((await reply.json()).error);
  byId("login").hidden = true;
  byId("main").hidden = false;
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return true;
    rest += value;
    const parts = rest.split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const [event, data] = part.split("\n");
      take(event.slice("event: ".length), JSON.parse(data.slice("data: ".length)));
    }
  }
}

async function follow() {
  for (;;) {
    let why = "the router ended the stream";
    try {
      if (!(await read())) return;
    } catch (error) {
      why = error.message;
    }
    say(`no news since ${state.snapshot ? clock(state.snapshot.point.at) : "the page was opened"}: ${why}; trying again`, "error");
    await new Promise((done) => setTimeout(done, RETRY_MS));
  }
}

// More findings of one kind than these are folded: where all pods of a fleet are away, each is one.
const MOST_OF_A_KIND = 5;

function finding(one) {
  const where = [one.pod, one.model].filter(Boolean).join(", ");
  return make("div", { class: "notice degraded" },
    make("p", {}, make("strong", {}, where || one.kind), where ? make("span", { class: "note" }, ` kind: ${one.kind}`) : ""),
    make("p", {}, ...prose(one.text)));
}

function showFindings(diagnosis) {
  const kinds = Map.groupBy(diagnosis.findings, (one) => one.kind);
  const open = new Set([...byId("found").querySelectorAll("details[open]")].map((one) => one.dataset.kind));
  const found = [...kinds].flatMap(([kind, alike]) => {
    const [shown, more] = [alike.slice(0, MOST_OF_A_KIND), alike.slice(MOST_OF_A_KIND)];
    const folded = make("details", { "data-kind": kind, open: open.has(kind) }, make("summary", {}, `${more.length} more: ${kind}`), ...more.map(finding));
    return [...shown.map(finding), ...(more.length ? [folded] : [])];
  });
  if (!found.length) found.push(make("p", {}, "None: whatever the doctor looks for is in order."));
  fill(byId("found"), ...found);
}

function showReadiness(snapshot) {
  const table = byId("conditions");
  if (!table.tHead.rows.length) {
    table.tHead.append(make("tr", {}, ...["Condition", "Holds", "Required", "Why"].map((name) => make("th", { scope: "col" }, name))));
  }
  fill(table.tBodies[0], ...snapshot.conditions.map((one) =>
    make("tr", {},
      make("td", {}, one.name),
      make("td", { class: one.holds ? "ready" : "down" }, one.holds ? "yes" : "no"),
      make("td", {}, one.required ? "yes" : "no"),
      make("td", {}, one.reason))));
}

let noticed = "";

// What a reader must know before all else. Elements stay while nothing changes: one may have the focus.
function showNotices(notices) {
  const told = JSON.stringify(notices);
  if (told === noticed) return;
  noticed = told;
  fill(byId("notices"), ...notices.map(({ kind, title, text }) =>
    make("div", { class: `notice ${kind}` }, make("p", {}, make("strong", {}, title), " ", ...prose(text)))));
}

function show() {
  const { snapshot } = state;
  if (snapshot === null) return;
  const pods = snapshot.pods.length === 1 ? "1 pod" : `${snapshot.pods.length} pods`;
  const when = unseen === null ? clock(snapshot.point.at) : `paused at ${clock(snapshot.point.at)}`;
  say(`${snapshot.ready ? "ready" : "not ready"} · ${pods} · ${when}`, snapshot.ready ? "ready" : "down");
  const begun = new Date(1000 * snapshot.since).toLocaleString("en-GB");
  byId("about").textContent = `warmpath ${snapshot.version} on ${snapshot.host}. Figures count from its start, ${begun}; each router has its own.`;
  offerModels(snapshot);
  showShadow(byId("shadow"), state.view === "overview" ? snapshot.shadow : null);
  showNotices(snapshot.notices);
  if (state.view === "overview") showOverview(state);
  if (state.view === "pod") showPod(byId("pod"), state);
  if (state.view === "findings") showReadiness(snapshot);
}

function route() {
  const [name, ...rest] = location.hash.slice(1).split("/");
  state.view = VIEWS.includes(name) ? name : "overview";
  state.podId = decodeURIComponent(rest.join("/"));
  for (const view of VIEWS) byId(view).hidden = view !== state.view;
  for (const link of document.querySelectorAll("nav a")) {
    const isHere = link.hash === `#${state.view}`;
    if (isHere) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (state.view === "findings") refreshFindings();
  show();
}

async function refreshFindings() {
  if (state.view !== "findings" || document.hidden) return;
  try {
    showFindings(await call("Diagnose", {}));
  } catch (error) {
    fill(byId("found"), make("p", { class: "error" }, error.message));
  }
}

byId("login").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem("token", byId("token").value);
  byId("token").value = "";
  follow();
});
byId("filter").addEventListener("input", show);
byId("span").addEventListener("input", show);
byId("session").addEventListener("input", findSession);
byId("pause").addEventListener("click", pause);
byId("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  askToExplain(call);
});
window.addEventListener("hashchange", () => {
  route();
  byId("main").focus();
});
setInterval(refreshFindings, FINDINGS_MS);
followForm();
route();
follow();

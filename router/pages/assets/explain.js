// The prompt box: which pods hold which blocks of a prompt, the prompt painted by them, and which pod a pick would choose.

import { count, fill, make, seconds, share } from "./draw.js";

const MOST_CELLS = 120;
const MOST_PODS = 40;
const nameOf = (one) => (one.rank ? `${one.pod} rank ${one.rank}` : one.pod);
const byId = (id) => document.getElementById(id);
// The block sizes of each pod's ranks, of the newest snapshot.
let blockSizes = new Map();

export function offerModels(snapshot) {
  blockSizes = new Map(snapshot.pods.map((pod) => [pod.id, pod.ranks.map((rank) => rank.block_size)]));
  const names = [...new Set(snapshot.pods.flatMap((pod) => [pod.model, ...pod.models]))].filter(Boolean).sort();
  const list = byId("models");
  if (list.children.length !== names.length) fill(list, ...names.map((name) => make("option", { value: name })));
  if (!byId("model").value && names.length) byId("model").value = names[0];
}

// What a prompt's form says it is.
function kindOf(text) {
  if (!/^\s*[{[]/.test(text)) return "text";
  try {
    const value = JSON.parse(text);
    if (value.messages ?? value[0]?.role) return "chat";
    return value.length && value.every(Number.isInteger) ? "ids" : "text";
  } catch {
    return "text";
  }
}

// Follows the prompt's form. Where that is no JSON the reader's choice stays, until the prompt is empty.
export function followForm() {
  let isChosen = false;
  byId("kind").addEventListener("input", () => (isChosen = true));
  byId("prompt").addEventListener("input", ({ target }) => {
    if (!target.value) isChosen = false;
    const kind = kindOf(target.value);
    if (kind !== "text" || !isChosen) byId("kind").value = kind;
  });
}

function promptOf(model, kind, text) {
  if (kind === "text") return { model, text };
  if (kind === "chat") {
    const parsed = JSON.parse(text);
    const body = JSON.stringify({ model, ...(Array.isArray(parsed) ? { messages: parsed } : parsed) });
    return { model, chat_body: btoa(String.fromCharCode(...new TextEncoder().encode(body))) };
  }
  const ids = text.split(/[\s,[\]]+/).filter(Boolean).map(Number);
  if (!ids.length || ids.some((id) => !Number.isInteger(id) || id < 0)) throw new Error("Token ids are whole numbers, with spaces or commas between them.");
  return { model, token_ids: { ids } };
}

export async function askToExplain(call) {
  const shown = byId("explained");
  fill(shown, make("p", { class: "note" }, "asking"));
  try {
    const prompt = promptOf(byId("model").value, byId("kind").value, byId("prompt").value);
    const scored = await call("Score", { prompt, explain: !prompt.token_ids });
    fill(shown, ...held(scored, prompt.token_ids?.ids));
    const explained = await call("Explain", { prompt });
    shown.append(...chosen(explained));
  } catch (error) {
    const why = error instanceof SyntaxError ? `The chat request is not JSON: ${error.message}` : error.message;
    shown.append(make("p", { class: "error" }, why));
    shown.querySelector(".note")?.remove();
  }
}

// The text whose tokens were scored, and where each of them ends; null if that is not known.
function textOf({ explanation }, ids) {
  if (ids) {
    let end = 0;
    return { text: ids.map((id) => `${id} `).join(""), ends: ids.map((id) => (end += `${id} `.length)) };
  }
  return explanation?.token_ends?.length ? { text: explanation.text, ends: explanation.token_ends } : null;
}

// The prompt from its first token to its last, painted by the share of pods that hold each part.
function strip(scores, tokens) {
  const cells = Math.min(MOST_CELLS, tokens);
  const made = make("div", { class: "strip", role: "img", "aria-label": `The best pod holds the first ${scores[0].matched_tokens} of ${tokens} tokens.` });
  for (let i = 0; i < cells; i++) {
    const end = Math.ceil(((i + 1) * tokens) / cells);
    const holding = scores.filter((one) => one.matched_tokens >= end);
    const names = holding.slice(0, 6).map((one) => one.pod).join(", ");
    const cell = make("i", { title: `up to token ${end}: ${holding.length ? `${holding.length} of ${scores.length} pods (${names})` : "no pod"}` });
    cell.style.opacity = holding.length ? 0.25 + (0.75 * holding.length) / scores.length : 0;
    made.append(cell);
  }
  return [make("p", { class: "note" }, "From the first token to the last; the stronger the colour, the more pods hold it:"), made];
}

function held(scored, ids) {
  const tokens = scored.prompt_tokens;
  const scores = [...scored.scores].sort((a, b) => b.matched_tokens - a.matched_tokens || a.pod.localeCompare(b.pod));
  const parts = [make("h2", {}, `${count(tokens)} tokens`)];
  if (!scores.length || !tokens) return [...parts, make("p", {}, "No pod serves this model, or the prompt is empty.")];
  const known = textOf(scored, ids);
  const sizes = new Set(scores.flatMap((one) => blockSizes.get(one.pod) ?? []).filter((size) => size > 0));
  const prompt = known ? painted(known.text, known.ends, scores, sizes.size === 1 ? [...sizes][0] : 0) : strip(scores, tokens);
  const reach = make("div", { class: "reach" });
  for (const one of scores.slice(0, MOST_PODS)) {
    const bars = make("span", { class: "bar", "aria-hidden": "true" });
    // What a pick has just sent there counts before the engine's events say so.
    const held = one.believed_tokens ? [...one.tiers, { tier: "unconfirmed", tokens: one.believed_tokens }] : one.tiers;
    for (const { tier, tokens: there } of held) {
      const part = make("i", { class: tier });
      part.style.width = `${(100 * there) / tokens}%`;
      bars.append(part);
    }
    const tiers = held.map(({ tier, tokens: there }) => `${tier} ${count(there)}`).join(", ");
    const level = (one.trust?.level ?? "").toLowerCase();
    reach.append(make("a", { href: `#pod/${encodeURIComponent(one.pod)}` }, nameOf(one)), bars, make("span", {}, `${tiers || "nothing"} (${share(one.matched_tokens, tokens)}), `, make("span", { class: level }, level)));
  }
  const left = scores.length - MOST_PODS;
  return [...parts, ...prompt, reach, left > 0 ? make("p", { class: "note" }, `and ${left} more`) : null].filter(Boolean);
}

function chosen(explained) {
  const rows = explained.candidates.slice(0, MOST_PODS).map((one) =>
    make("tr", {},
      make("td", {}, nameOf(one)),
      make("td", { class: "n" }, count(one.matched_tokens)),
      make("td", { class: "n" }, seconds(one.details?.wait_seconds ?? 0)),
      make("td", { class: "n less" }, seconds(one.details?.prefill_seconds ?? 0)),
      make("td", { class: "n" }, seconds(one.predicted_ttft)),
      make("td", { class: "n" }, one.cost.toFixed(4))));
  const names = [["Candidate"], ["Cached", "n"], ["Wait", "n"], ["Prefill", "n less"], ["First token", "n"], ["Cost", "n"]];
  const head = make("tr", {}, ...names.map(([name, kind]) => make("th", { class: kind, scope: "col" }, name)));
  return [
    make("h2", {}, `The pick (${explained.policy})`),
    make("p", {}, explained.reason),
    explained.reckoned_because ? make("p", { class: "note" }, `${count(explained.reckoned_tokens)} tokens were estimated: ${explained.reckoned_because}`) : "",
    make("div", { class: "wide" }, make("table", {}, make("thead", {}, head), make("tbody", {}, ...rows))),
  ];
}

// More marks than these nobody could read.
const MOST_BLOCKS = 2000;
const MOST_TAGS = 30;
const MOST_NAMES = 3;

function named(holding, all) {
  if (!holding.length) return "no pod";
  if (holding.length === all && all > 1) return `all ${all} pods`;
  const names = () => holding.map(nameOf).sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
  return holding.length <= MOST_NAMES ? names().join(", ") : `${holding.length} of ${all} pods`;
}

// Token positions at which what holds the prompt changes, and, in `blocks`, those at which a block ends.
function edges(scores, tokens, blockSize) {
  const changes = new Set([0, tokens, ...scores.map((one) => Math.min(one.matched_tokens, tokens))]);
  const blocks = new Set();
  if (blockSize && tokens / blockSize <= MOST_BLOCKS) for (let at = blockSize; at < tokens; at += blockSize) blocks.add(at);
  return [[...new Set([...changes, ...blocks])].sort((a, b) => a - b), changes];
}

function paint(text, ends, scores, blockSize) {
  const [cuts, changes] = edges(scores, ends.length, blockSize);
  const made = [];
  for (let i = 1; i < cuts.length; i++) {
    const [first, end] = [cuts[i - 1], cuts[i]];
    const holding = scores.filter((one) => one.matched_tokens >= end);
    const who = named(holding, scores.length);
    const part = make("span", { title: `tokens ${count(first + 1)} to ${count(end)}: ${who}` });
    if (changes.has(first) && changes.size <= MOST_TAGS) part.append(make("b", {}, who));
    part.append(text.slice(first ? ends[first - 1] : 0, ends[end - 1]).join(""));
    if (holding.length) part.style.setProperty("--held", `${10 + (35 * holding.length) / scores.length}%`);
    made.push(part);
  }
  return made;
}

// `ends` has for each token how many characters end with it; `scores` have the warmest pod first.
function painted(text, ends, scores, blockSize) {
  const characters = [...text];
  const shown = make("div", { class: "painted", tabindex: "0", role: "group", "aria-label": "The prompt, painted" });
  const whose = make("select", { id: "whose" }, make("option", { value: "" }, "all pods"), ...scores.map((one, at) => make("option", { value: at }, nameOf(one))));
  const show = () => fill(shown, ...paint(characters, ends, whose.value === "" ? scores : [scores[whose.value]], blockSize));
  whose.addEventListener("input", show);
  show();
  const marks = blockSize && ends.length / blockSize <= MOST_BLOCKS ? ` Lines end blocks of ${blockSize} tokens.` : "";
  return [
    make("p", {}, make("label", { for: "whose" }, "Paint the blocks of"), " ", whose),
    make("p", { class: "note" }, `The stronger the colour, the more of them hold it.${marks}`),
    shown,
  ];
}

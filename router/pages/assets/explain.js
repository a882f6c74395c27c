// The prompt box: which pods hold which blocks of a prompt, and which pod a pick would choose.

import { count, fill, make, seconds, share } from "./draw.js";
import { painted } from "./painted.js";

const MOST_CELLS = 120;
const MOST_PODS = 40;
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

function promptOf(model, kind, text) {
  if (kind === "text") return { model, text };
  if (kind === "chat") {
    const body = JSON.stringify({ model, ...JSON.parse(text) });
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
    const name = one.rank ? `${one.pod} rank ${one.rank}` : one.pod;
    const tiers = held.map(({ tier, tokens: there }) => `${tier} ${count(there)}`).join(", ");
    const level = (one.trust?.level ?? "").toLowerCase();
    reach.append(make("a", { href: `#pod/${encodeURIComponent(one.pod)}` }, name), bars, make("span", {}, `${tiers || "nothing"} (${share(one.matched_tokens, tokens)}), `, make("span", { class: level }, level)));
  }
  const left = scores.length - MOST_PODS;
  return [...parts, ...prompt, reach, left > 0 ? make("p", { class: "note" }, `and ${left} more`) : null].filter(Boolean);
}

function chosen(explained) {
  const rows = explained.candidates.slice(0, MOST_PODS).map((one) =>
    make("tr", {},
      make("td", {}, one.rank ? `${one.pod} rank ${one.rank}` : one.pod),
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

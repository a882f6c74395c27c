// The page of one pod: its ranks, its events, and the decisions that went there.

import { bar, clock, count, fill, make, seconds, share, stateOf } from "./draw.js";
import { showDecisions } from "./overview.js";

export function showPod(section, state) {
  const pod = state.snapshot.pods.find((one) => one.id === state.podId);
  if (!pod) {
    fill(section, make("h2", {}, state.podId), make("p", { class: "note" }, "This router knows no pod of this name (any more)."));
    return;
  }
  const facts = [
    ["Address", pod.address],
    ["Model", [pod.model, ...pod.models.filter((name) => name !== pod.model)].join(", ")],
    ["Engine", pod.role === "both" ? pod.engine : `${pod.engine}, ${pod.role}`],
    ["State", stateOf(pod)],
    ["Picks", count(pod.requests)],
    ["Cached where picked", share(pod.captured_tokens, pod.prompt_tokens)],
    ["Round robin (estimate)", share(pod.average_tokens, pod.prompt_tokens)],
    ["Predicted, and found by the engine", pod.predicted_tokens || pod.delivered_tokens ? `${count(pod.predicted_tokens)}, ${count(pod.delivered_tokens)} tokens` : "nothing reported yet"],
  ];
  const decisions = make("table", {}, make("thead"), make("tbody"));
  const last = state.decisions.length;
  showDecisions(decisions, state.decisions.filter((one) => one.pod === pod.id), last ? `None of the last ${last} went here.` : "No pick yet.");
  fill(section,
    make("h2", {}, pod.id),
    make("dl", { class: "cards facts" }, ...facts.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value)))),
    make("h2", {}, pod.ranks.length === 1 ? "Rank" : "Ranks"),
    ...pod.ranks.map(rankView),
    make("h2", {}, "Decisions among the last that went here"),
    make("div", { class: "wide" }, decisions));
}

function rankView(rank) {
  const tiers = Object.entries(rank.tiers).map(([tier, blocks]) => `${tier} ${count(blocks)}`).join(", ") || "none";
  const full = rank.capacity && rank.used !== null ? `; ${share(rank.used, rank.capacity)} of its ${count(rank.capacity)} are taken` : "";
  const events = Object.entries(rank.events).map(([kind, number]) => `${kind.replaceAll("_", " ")} ${count(number)}`).join(", ");
  return make("div", { class: `finding ${rank.trust}` },
    make("p", {}, make("strong", {}, `Rank ${rank.rank}: `), make("span", { class: rank.trust }, rank.trust), ` since ${clock(rank.trust_since)}: ${rank.trust_reason}`),
    make("p", { class: "cache" }, bar(rank.tiers, rank.capacity), `Blocks${rank.block_size ? ` of ${rank.block_size} tokens` : ""}: ${tiers}${full}`),
    make("p", {}, `${rank.running} requests running, ${rank.waiting} of them without a first token; a new prefill would start in ${seconds(rank.wait_seconds)}. Events lag ${seconds(rank.lag_seconds)}.`),
    make("p", { class: "note" }, events ? `Events: ${events}.` : "No event yet."));
}

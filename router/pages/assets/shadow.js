// What the policy would have brought beside another gateway: a sentence, and what it would have cost.

import { count, fill, make, seconds, share } from "./draw.js";

export function showShadow(section, shadow) {
  section.hidden = !shadow;
  if (!shadow) return;
  const none = make("p", { class: "lead" }, "This router decides nothing. No request was compared yet.");
  fill(section, ...(shadow.models.length ? shadow.models.flatMap((model) => modelView(model, shadow.models.length > 1)) : [none]), ...logView(shadow.log));
}

function modelView(model, isNamed) {
  const sentence = model.better
    ? [`${count(model.better)} would have found `, make("strong", {}, `${share(model.better_tokens, model.better_prompt_tokens)} more`), " of their prompt cached."]
    : ["none would have found more of its prompt cached."];
  const signed = (value) => `${value < 0 ? "−" : ""}${seconds(Math.abs(value))}`;
  const ratio = (value) => value.toFixed(2);
  const all = model.prompt_tokens;
  const cards = [
    ["Trust", `${share(model.exact, model.requests)} exact`, `${count(model.requests - model.exact)} requests approximate`],
    ["First token earlier by", signed(model.saved_p50), `p50, predicted; p90 ${signed(model.saved_p90)}`],
    ["Cached of all tokens", `${share(model.chosen_tokens, all)} → ${share(model.warmpath_tokens, all)}`, `${count(model.worse)} requests would have found less`],
    ["Busiest pod over mean", `${ratio(model.chosen_imbalance)} → ${ratio(model.warmpath_imbalance)}`, "of the seconds of prefill; 1 is even"],
  ];
  return [
    make("p", { class: "lead" }, ...(isNamed ? [`${model.model}: of `] : ["Of "]), `${count(model.requests)} requests `, ...sentence),
    make("dl", { class: "cards" }, ...cards.map(([name, value, note]) => make("div", {}, make("dt", {}, name), make("dd", {}, value, make("small", {}, note))))),
  ];
}

function logView(log) {
  if (!log) return [];
  const lines = Object.entries(log.lines).filter(([, number]) => number).map(([name, number]) => `${name.replace("_", " ")} ${count(number)}`);
  return [make("p", { class: "note" }, `Lines of ${log.file}: ${lines.join(", ") || "none yet"}.${log.problem ? ` Last problem: ${log.problem}.` : ""}`)];
}

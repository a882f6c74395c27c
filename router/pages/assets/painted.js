// The prompt itself, painted by the pods that hold each part of it.

import { count, fill, make } from "./draw.js";

// More marks than these nobody could read.
const MOST_BLOCKS = 2000;
const MOST_TAGS = 30;
const MOST_NAMES = 3;

const nameOf = (one) => (one.rank ? `${one.pod} rank ${one.rank}` : one.pod);

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
export function painted(text, ends, scores, blockSize) {
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

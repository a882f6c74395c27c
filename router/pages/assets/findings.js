// Findings of the doctor, and the conditions of the router's readiness.

import { fill, make } from "./draw.js";

const byId = (id) => document.getElementById(id);

// More findings of one kind than these are folded: where all pods of a fleet are away, each is one.
const MOST_OF_A_KIND = 5;

function finding(one) {
  const where = [one.pod, one.model].filter(Boolean).join(", ");
  return make("div", { class: "finding" },
    make("p", {}, make("strong", {}, where || one.kind), where ? make("span", { class: "note" }, ` kind: ${one.kind}`) : ""),
    make("p", {}, one.text));
}

export function showFindings(diagnosis) {
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

export function showReadiness(snapshot) {
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

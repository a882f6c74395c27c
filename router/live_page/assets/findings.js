// Findings of the doctor, and the conditions of the router's readiness.

import { fill, make } from "./draw.js";

const byId = (id) => document.getElementById(id);

export function showFindings(diagnosis) {
  const found = diagnosis.findings.map((one) =>
    make("div", { class: "finding" },
      make("p", {}, make("strong", {}, one.kind), " ", [one.pod, one.model].filter(Boolean).join(", ")),
      make("p", {}, one.text)));
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

// The overview: cards, charts, pods and the last decisions; and the page of one pod: its ranks, events and decisions.

import { bar, chart, clock, copyable, count, fill, key, make, seconds, share, stateOf } from "./draw.js";

const RECENT_SECONDS = 300;
const GAP_SECONDS = 30;
const order = { by: "Pod", falls: false };
const byId = (id) => document.getElementById(id);

export function showOverview(state) {
  const { snapshot } = state;
  // A paused page has later points, for when it goes on; of a router begun anew it may have those alone.
  const earlier = state.points.filter((point) => point.at <= snapshot.point.at);
  const points = earlier.length ? earlier : [snapshot.point];
  showCards(snapshot, points);
  showCharts(points.filter((point) => snapshot.point.at - point.at <= byId("span").value), isWatching(snapshot) ? "your gateway" : "picked");
  showPods(state);
  showClients(snapshot.clients);
  showDecisions(byId("decisions"), state.ofSession ?? state.decisions, state.ofSession ? "No pick of this session is kept." : undefined);
  const sessions = new Set(state.decisions.map((one) => one.session_id).filter(Boolean));
  fill(byId("sessions"), ...[...sessions].map((value) => make("option", { value })));
}

// Whether another gateway decides alone.
const isWatching = ({ shadow }) => Boolean(shadow) && !shadow.decides;

// The growth of the counts over the last minutes: [first point, last point].
function recent(points) {
  const last = points.at(-1);
  return [points.find((point) => last.at - point.at <= RECENT_SECONDS), last];
}

function showCards(snapshot, points) {
  const [first, last] = recent(points);
  const grown = (name) => last[name] - first[name];
  const total = snapshot.point;
  const saved = total.captured_tokens - total.average_tokens;
  const span = Math.max(last.at - first.at, 1);
  const ranks = snapshot.pods.flatMap((pod) => pod.ranks);
  const exact = ranks.filter((rank) => rank.trust === "exact").length;
  const ready = snapshot.pods.filter((pod) => pod.ready).length;
  // All three of one span: that of the last minutes, or where nothing was picked in it, since the start.
  const isRecent = grown("prompt_tokens") > 0;
  const [of, picked, turn] = ["prompt_tokens", "captured_tokens", "average_tokens"].map((name) => (isRecent ? grown(name) : total[name]));
  const cards = [
    ["Cached where picked", share(picked, of), `${isRecent ? "in the last 5 minutes" : "since the start"}; round robin: about ${share(turn, of)}`],
    ["Prompt tokens saved", count(saved), `of ${count(total.prompt_tokens)} in all, against round robin`],
    ["Picks", `${count(grown("requests") / span)}/s`, `in the last 5 minutes; ${count(total.requests)} in all`],
    ["Pods ready", `${ready} of ${snapshot.pods.length}`, `the view of ${exact} of ${ranks.length} ranks is exact`],
    ["Event lag", seconds(total.lag_seconds), "of the rank that lags most"],
    ["Queue", snapshot.queue === null ? "off" : count(total.queued), queueText(snapshot.queue)],
  ];
  // The first two would be about picks that decided nothing.
  if (isWatching(snapshot)) cards.splice(0, 2);
  fill(byId("cards"), ...cards.map(([name, value, note]) => make("div", {}, make("dt", {}, name), make("dd", {}, value, make("small", {}, note)))));
}

function queueText(queue) {
  if (queue === null) return "picks are answered at once";
  return Object.entries(queue).map(([name, waiting]) => `${name}: ${waiting}`).join(", ") || "waiting picks";
}

// Rates from point to point; null where nothing was picked, or points are missing.
function rates(points, rate) {
  return points.map((point, i) => {
    const before = points[i - 1];
    if (!before || point.at - before.at > GAP_SECONDS) return null;
    return rate(point, before);
  });
}

function showCharts(points, chosen) {
  const times = points.map((point) => point.at);
  const ratio = (name) =>
    rates(points, (now, before) => {
      const tokens = now.prompt_tokens - before.prompt_tokens;
      return tokens > 0 ? (now[name] - before[name]) / tokens : null;
    });
  const lines = [
    { name: "the best pod for each", kind: "best", values: ratio("available_tokens") },
    { name: "round robin (estimate)", kind: "turn", values: ratio("average_tokens") },
    { name: chosen, kind: "picked", values: ratio("captured_tokens") },
  ];
  // A hidden view has no width.
  const width = byId("hits").clientWidth || 560;
  const percent = (value) => `${Math.round(100 * value)} %`;
  fill(byId("hits"), chart("Share of prompt tokens that was cached", times, lines, { top: 1, format: percent, width }), key(lines));
  const saved = rates(points, (now, before) => {
    const grown = (name) => now[name] - before[name];
    return Math.max(0, (grown("captured_tokens") - grown("average_tokens")) / (now.at - before.at));
  });
  const top = roundUp(Math.max(10, ...saved.filter((value) => value !== null)));
  const one = [{ name: "saved", kind: "picked", values: saved }];
  fill(byId("saved"), chart("Prompt tokens saved a second", times, one, { top, format: count, width }));
}

// The least of 1, 2 and 5 times a power of ten that is not below a value.
function roundUp(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return power * [1, 2, 5, 10].find((factor) => factor * power >= value);
}

const worst = (pod) => ["exact", "degraded", "cold", "stale"].findLast((level) => pod.ranks.some((rank) => rank.trust === level)) ?? "none";
const sum = (pod, name) => pod.ranks.reduce((all, rank) => all + (rank[name] ?? 0), 0);
const lag = (pod) => Math.max(0, ...pod.ranks.map((rank) => rank.lag_seconds));

function tiersOf(pod) {
  const tiers = {};
  for (const rank of pod.ranks) {
    for (const [tier, blocks] of Object.entries(rank.tiers)) tiers[tier] = (tiers[tier] ?? 0) + blocks;
  }
  return tiers;
}

function cache(pod) {
  const [tiers, capacity] = [tiersOf(pod), sum(pod, "capacity")];
  const held = Object.entries(tiers).map(([tier, blocks]) => `${tier} ${count(blocks)}`).join(", ") || "empty";
  const used = sum(pod, "used");
  const full = capacity && used ? `, ${share(used, capacity)} full` : "";
  return make("span", { class: "cache" }, bar(tiers, capacity), `${held}${full}`);
}

const COLUMNS = [
  { name: "Pod", value: (pod) => pod.id, cell: (pod) => make("a", { href: `#pod/${encodeURIComponent(pod.id)}` }, pod.id) },
  { name: "Model", value: (pod) => pod.model, kind: "least" },
  { name: "State", value: (pod) => (pod.ready ? "ready" : "not ready"), cell: (pod) => make("span", { class: pod.ready ? "ready" : "down", title: stateOf(pod) }, pod.ready ? "ready" : "not ready") },
  { name: "Trust", value: worst, cell: (pod) => make("span", { class: worst(pod), title: pod.ranks.map((rank) => rank.trust_reason).join("; ") }, worst(pod)) },
  { name: "Cached blocks", value: (pod) => Object.values(tiersOf(pod)).reduce((a, b) => a + b, 0), cell: cache },
  { name: "Running", value: (pod) => sum(pod, "running"), kind: "n less" },
  { name: "Waiting", value: (pod) => sum(pod, "waiting"), kind: "n less" },
  { name: "Lag", value: lag, cell: (pod) => seconds(lag(pod)), kind: "n least" },
  { name: "Picks", value: (pod) => pod.requests, cell: (pod) => count(pod.requests), kind: "n least" },
  { name: "Hit ratio", value: (pod) => pod.captured_tokens / Math.max(1, pod.prompt_tokens), cell: (pod) => share(pod.captured_tokens, pod.prompt_tokens), kind: "n" },
];

function showPods(state) {
  const [head, body] = [byId("pods").tHead, byId("pods").tBodies[0]];
  const wanted = byId("filter").value.trim().toLowerCase();
  const pods = state.snapshot.pods.filter((pod) => `${pod.id} ${pod.model} ${worst(pod)}`.toLowerCase().includes(wanted));
  const column = COLUMNS.find((one) => one.name === order.by) ?? COLUMNS[0];
  pods.sort((a, b) => {
    const [left, right] = [column.value(a), column.value(b)];
    const less = typeof left === "string" ? left.localeCompare(right, "en", { numeric: true }) : left - right;
    return (order.falls ? -1 : 1) * less || a.id.localeCompare(b.id, "en", { numeric: true });
  });
  if (!head.rows.length) head.append(make("tr", {}, ...COLUMNS.map((one) => heading(one, state))));
  [...head.rows[0].cells].forEach((cell, i) => {
    const isSorted = COLUMNS[i] === column;
    cell.setAttribute("aria-sort", isSorted ? (order.falls ? "descending" : "ascending") : "none");
  });
  fill(body, ...pods.map((pod) => make("tr", {}, ...COLUMNS.map((one) => make("td", { class: one.kind }, one.cell ? one.cell(pod) : String(one.value(pod)))))));
  if (!pods.length) fill(body, make("tr", {}, make("td", { colspan: COLUMNS.length, class: "note" }, state.snapshot.pods.length ? "No pod matches." : "This router knows no pod yet. Its log says why, and docs/reference/config.md has [[pods]] and the sources that find them.")));
}

// What caches save each client. Callers that name neither a client nor a tenant are one, as the cards show.
function showClients(clients) {
  byId("clients-part").hidden = !clients.some((one) => one.client || one.tenant);
  const columns = [
    ["Client", "", (one) => one.client || "–"],
    ["Tenant", "", (one) => one.tenant || "–"],
    ["Model", "least", (one) => one.model],
    ["Picks", "n least", (one) => count(one.requests)],
    ["Prompt tokens", "n", (one) => count(one.prompt_tokens)],
    ["Cached where picked", "n", (one) => share(one.captured_tokens, one.prompt_tokens)],
    ["Round robin", "n less", (one) => share(one.average_tokens, one.prompt_tokens)],
    ["Prefill saved", "n", (one) => seconds(one.saved_seconds)],
    ["Found of predicted", "n least", (one) => share(one.delivered_tokens, one.predicted_tokens)],
  ];
  const rows = clients.toSorted((a, b) => b.saved_seconds - a.saved_seconds);
  fill(byId("clients").tHead, make("tr", {}, ...columns.map(([name, kind]) => make("th", { class: kind, scope: "col" }, name))));
  fill(byId("clients").tBodies[0], ...rows.map((one) => make("tr", {}, ...columns.map(([, kind, cell]) => make("td", { class: kind }, cell(one))))));
}

function heading(column, state) {
  const button = make("button", { type: "button" }, column.name);
  button.addEventListener("click", () => {
    order.falls = order.by === column.name ? !order.falls : typeof column.value(state.snapshot.pods[0] ?? { ranks: [] }) === "number";
    order.by = column.name;
    showPods(state);
  });
  return make("th", { class: column.kind, scope: "col" }, button);
}

function showDecisions(table, decisions, none = "No pick yet.") {
  if (!table.tHead.rows.length) {
    const names = [["Time"], ["Pod"], ["Tokens", "n"], ["Cached", "n"], ["First token", "n less"], ["State", "less"], ["Why", "least"]];
    table.tHead.append(make("tr", {}, ...names.map(([name, kind]) => make("th", { class: kind, scope: "col" }, name))));
  }
  const rows = decisions.flatMap((one) => {
    const picked = one.candidates[0];
    const found = one.cached_tokens === null ? "" : make("span", { class: "less" }, ` (engine: ${count(one.cached_tokens)})`);
    const rank = one.rank ? ` rank ${one.rank}` : "";
    const row = make("tr", {},
      make("td", {}, clock(one.at)),
      make("td", {}, make("a", { href: `#pod/${encodeURIComponent(one.pod)}` }, one.pod), rank),
      make("td", { class: "n" }, count(one.prompt_tokens)),
      make("td", { class: "n" }, ...(picked ? [count(picked.matched_tokens), found] : ["–"])),
      make("td", { class: "n less" }, seconds(one.ttft)),
      make("td", { class: `${one.state} less` }, `${one.state.replace("_", " ")}${one.shadow ? ", shadow" : ""}`),
      make("td", { class: "least" }, one.reason));
    return [row, make("tr", { class: "why" }, make("td", { colspan: 7 }, one.reason))];
  });
  if (!rows.length) rows.push(make("tr", {}, make("td", { colspan: 7, class: "note" }, none)));
  fill(table.tBodies[0], ...rows);
}

export function showPod(section, state) {
  const pod = state.snapshot.pods.find((one) => one.id === state.podId);
  if (!pod) {
    fill(section, make("h2", {}, state.podId), make("p", { class: "note" }, "This router knows no pod of this name (any more)."));
    return;
  }
  const facts = [
    ["Address", copyable(pod.address)],
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
  return make("div", { class: `notice ${rank.trust}` },
    make("p", {}, make("strong", {}, `Rank ${rank.rank}: `), make("span", { class: rank.trust }, rank.trust), ` since ${clock(rank.trust_since)}: ${rank.trust_reason}`),
    make("p", { class: "cache" }, bar(rank.tiers, rank.capacity), `Blocks${rank.block_size ? ` of ${rank.block_size} tokens` : ""}: ${tiers}${full}`),
    make("p", {}, `${rank.running} requests running, ${rank.waiting} of them without a first token; a new prefill would start in ${seconds(rank.wait_seconds)}. Events lag ${seconds(rank.lag_seconds)}.`),
    make("p", { class: "note" }, events ? `Events: ${events}.` : "No event yet."));
}

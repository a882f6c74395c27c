// Makes elements, tables and charts. Texts are only ever set as text, so that no name of a pod is markup.

// A line goes on over a silence of this length: a pause in the traffic is no fault.
const JOINED_SECONDS = 60;
const SVG = "http://www.w3.org/2000/svg";

export function make(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

function shape(tag, attributes, text) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

export function count(value) {
  if (value >= 1e9) return `${(value / 1e9).toFixed(2)} G`;
  if (value >= 1e6) return `${(value / 1e6).toFixed(2)} M`;
  if (value >= 1e4) return `${(value / 1e3).toFixed(1)} k`;
  return Number.isInteger(value) ? value.toLocaleString("en") : value.toFixed(value < 10 ? 2 : 0);
}

// A pod whose probe was answered is not ready for want of events.
export function stateOf(pod) {
  if (pod.ready) return "ready";
  return `not ready: ${pod.status === "/health answers" ? "its events are not connected" : pod.status}`;
}

export function share(part, whole) {
  return whole ? `${((100 * part) / whole).toFixed(1)}\u00a0%` : "–";
}

export function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value < 0.0005) return "0 ms";
  return value < 1 ? `${(1000 * value).toFixed(value < 0.01 ? 1 : 0)} ms` : `${value.toFixed(1)} s`;
}

export function clock(at) {
  return new Date(1000 * at).toLocaleTimeString("en-GB");
}

// A command or an address, and the button that copies it (copy.js).
export function copyable(text) {
  return make("span", { class: "copyable" }, make("code", {}, text), make("button", { type: "button", class: "copy", "aria-label": `Copy ${text}` }, "Copy"));
}

// A text's parts: between backticks are names, and commands if they have several words.
export function prose(text) {
  return text.split("`").map((part, at) => (at % 2 === 0 ? part : part.includes(" ") ? copyable(part) : make("code", {}, part)));
}

// Replaces an element's children; one that equals the one with the focus gets it.
export function fill(element, ...children) {
  const focused = element.contains(document.activeElement) ? document.activeElement : null;
  element.replaceChildren(...children.filter((child) => child !== null && child !== undefined));
  if (focused) [...element.querySelectorAll(focused.localName)].find((one) => one.isEqualNode(focused))?.focus({ preventScroll: true });
}

// A bar of the blocks of each tier; its text says the same.
export function bar(tiers, capacity) {
  const total = Object.values(tiers).reduce((sum, blocks) => sum + blocks, 0);
  const whole = Math.max(capacity, total, 1);
  const made = make("span", { class: "bar", "aria-hidden": "true" });
  for (const [tier, blocks] of Object.entries(tiers)) {
    const part = make("i", { class: tier });
    part.style.width = `${(100 * blocks) / whole}%`;
    made.append(part);
  }
  return made;
}

// Lines over time, `width` pixels wide. `lines` are {name, kind, values}; long runs of null values leave a gap.
export function chart(title, times, lines, { top, format, width }) {
  const [height, left, bottom] = [190, 52, 22];
  const made = shape("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, role: "img" });
  const said = lines.map((line) => `${line.name}: ${format(line.values.findLast((v) => v !== null) ?? 0)}`);
  made.append(shape("title", {}, `${title}. Now: ${said.join(", ")}`));
  const [first, last] = [times[0] ?? 0, Math.max(times.at(-1) ?? 1, (times[0] ?? 0) + 60)];
  const x = (at) => left + ((width - left - 8) * (at - first)) / (last - first);
  const y = (value) => height - bottom - ((height - bottom - 8) * Math.min(value, top)) / (top || 1);
  for (const part of [0, 0.5, 1]) {
    const at = y(top * part);
    made.append(shape("line", { class: "grid", x1: left, x2: width - 8, y1: at, y2: at }));
    made.append(shape("text", { x: left - 6, y: at + 4, "text-anchor": "end" }, format(top * part)));
  }
  made.append(shape("text", { x: left, y: height - 6 }, clock(first)));
  made.append(shape("text", { x: width - 8, y: height - 6, "text-anchor": "end" }, clock(last)));
  for (const line of lines) {
    let path = "";
    let before = -Infinity;
    line.values.forEach((value, i) => {
      if (value === null) return;
      const joins = times[i] - before <= JOINED_SECONDS;
      path += `${joins ? "L" : "M"}${x(times[i]).toFixed(1)} ${y(value).toFixed(1)}`;
      if (!joins) path += "h.01";
      before = times[i];
    });
    made.append(shape("path", { class: line.kind, d: path || "M0 0" }));
  }
  return made;
}

export function key(lines) {
  const made = make("p", { class: "key" });
  for (const line of lines) made.append(make("span", {}, make("i", { class: line.kind, "aria-hidden": "true" }), line.name));
  return made;
}

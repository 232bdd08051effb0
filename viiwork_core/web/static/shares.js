// Shares: how much of their prompts the turns reused that followed an import.

import { h } from "./elements.js";
import { count, number, percent } from "./words.js";

const KINDS = ["warm", "partly", "cold", "unknown"];

/** The sum of several nodes' or models' imports. */
export function total(imports) {
  return Object.fromEntries(KINDS.map((kind) => [kind, imports.reduce((sum, one) => sum + (number(one[kind]) ?? 0), 0)]));
}

/** A bar and its figures. */
export function shares(imports) {
  const all = KINDS.reduce((sum, kind) => sum + imports[kind], 0);
  if (!all) return h("span", { class: "faint wide" }, "none yet");
  let left = 0;
  const parts = KINDS.filter((kind) => imports[kind]).map((kind) => {
    const width = (100 * imports[kind]) / all;
    const part = h("rect", { class: `share ${kind}`, x: left.toFixed(2), y: 0, width: width.toFixed(2), height: 8 });
    left += width;
    return part;
  });
  const words = KINDS.filter((kind) => imports[kind]).map((kind) => `${kind} ${percent(imports[kind] / all)} (${count(imports[kind])})`);
  return [
    h("svg", { class: "shares", viewBox: "0 0 100 8", preserveAspectRatio: "none", "aria-hidden": "true" }, parts),
    h("span", null, words.join(", ")),
  ];
}

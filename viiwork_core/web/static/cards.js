// Cards: a node's GPUs in few words; more than two of a kind are told together.

import { h } from "./elements.js";
import { memory, number, percent, watts } from "./words.js";

const APART = 2;

/** What the figures of some cards come to; null where one of them does not tell. */
function sum(cards, figure) {
  return cards.reduce((all, one) => (all === null || number(one[figure]) === null ? null : all + one[figure]), 0);
}

function words(cards) {
  const load = sum(cards, "util");
  const [used, whole, power] = ["vram_used_mb", "vram_total_mb", "power_w"].map((figure) => sum(cards, figure));
  const found = [
    load === null ? null : percent(load / cards.length / 100),
    used === null ? null : whole ? `${memory(used)} of ${memory(whole)}` : memory(used),
    power === null ? null : watts(power),
  ];
  return found.filter(Boolean).join(", ") || "–";
}

/** Load as a mean, memory and power as sums. */
export function cards(all) {
  if (!all) return "–";
  if (!all.length) return "none";
  const kinds = new Map();
  for (const one of all) kinds.set(one.name ?? "", [...(kinds.get(one.name ?? "") ?? []), one]);
  return [...kinds].flatMap(([kind, some]) =>
    kind && some.length > APART ? [line(`all ${kind}`, `${some.length} × ${kind}`, some)] : some.map((one) => line(one.index, kind || one.index, [one])));
}

function line(key, title, some) {
  return h("span", { class: "card", key }, `${title}: `, h("span", { class: "figures" }, words(some)));
}

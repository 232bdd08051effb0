// Graphs: the last hour of one figure as a line. Where nothing was measured there is no line.

import { h } from "./elements.js";

export const HOUR_S = 3600;
const WIDTH = 300;
const HEIGHT = 56;
const GAP_S = 35; // so long without a sample is a break, not a slope

/** `points`: [Unix seconds, value or null], oldest first; `top`: the value at the upper edge, or null for the largest. */
export function graph(title, points, { top = null, now, text }) {
  const known = points.filter(([t, value]) => value !== null && t > now - HOUR_S);
  const largest = known.reduce((most, [, value]) => Math.max(most, value), 0);
  const edge = top || nice(largest * 1.05);
  // A figure that is no longer told is not known, whatever it was before.
  const [at, newest] = points.at(-1) ?? [0, null];
  const last = now - at > GAP_S ? null : newest;
  const current = last === null ? "not known" : text(last);
  const said = `${title}: ${current} now${known.length ? `, at most ${text(largest)} in the last hour` : ""}`;
  return h("figure", { class: "graph", key: title },
    h("figcaption", null, h("span", null, title), h("b", null, last === null ? "–" : text(last))),
    h("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": said, preserveAspectRatio: "none" },
      h("line", { class: "base", x1: 0, x2: WIDTH, y1: HEIGHT - 0.5, y2: HEIGHT - 0.5, "vector-effect": "non-scaling-stroke" }),
      h("path", { class: "area", d: path(known, now, edge, true) }),
      h("path", { class: "line", d: path(known, now, edge, false), "vector-effect": "non-scaling-stroke" })),
    h("p", { class: "scale", "aria-hidden": "true" }, h("span", null, "an hour ago"), h("span", null, known.length ? `0 to ${text(edge)}` : "nothing measured yet"), h("span", null, "now")));
}

function path(points, now, edge, closed) {
  const parts = [];
  let before = null;
  let start = null;
  const end = () => closed && before !== null && parts.push(`L${x(before, now)} ${HEIGHT}L${x(start, now)} ${HEIGHT}Z`);
  for (const [t, value] of points) {
    const y = (HEIGHT - 1 - Math.min(1, value / edge) * (HEIGHT - 3)).toFixed(1);
    const begins = before === null || t - before > GAP_S || t < before;
    if (begins) {
      end();
      start = t;
    }
    // A measurement without a neighbour is seen as a dot.
    parts.push(`${begins ? "M" : "L"}${x(t, now)} ${y}${begins && !closed ? "h0" : ""}`);
    before = t;
  }
  end();
  return parts.join("");
}

function x(t, now) {
  return (WIDTH * (1 - (now - t) / HOUR_S)).toFixed(1);
}

function nice(value) {
  if (value <= 0) return 1;
  const size = 10 ** Math.floor(Math.log10(value));
  return [1, 1.5, 2, 3, 4, 5, 6, 8, 10].map((step) => step * size).find((step) => step >= value);
}

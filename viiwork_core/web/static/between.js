// Between: what goes from node to node, drawn as arcs: requests that are on their way now, and caches that were sent.

import { h, name, table } from "./elements.js";
import { bytes, count, number, plural } from "./words.js";

const MOST_NODES = 16; // of the picture
const MOST_ROWS = 20;
const SHOWN_MS = 4000; // a cache that was sent is seen to be
const [WIDTH, ROW, EDGE, MARGIN] = [360, 32, 162, 12];
const LABEL = 22; // letters at most, fewer where they are wide
const pen = document.createElement("canvas").getContext("2d"); // only measures
pen.font = "12px system-ui, sans-serif"; // as the style has it

export class Between {
  #sent = new Map(); // by link: what had been sent when it was heard of last, and until when it is seen to move

  /** `members` have told anew what they sent. */
  heard(members, now = Date.now()) {
    const before = this.#sent;
    this.#sent = new Map();
    for (const one of caches(members)) {
      const known = before.get(one.key);
      const more = known !== undefined && one.sent > known.sent;
      this.#sent.set(one.key, { sent: one.sent, until: more ? now + SHOWN_MS : (known?.until ?? 0) });
    }
  }

  /**
   * The picture with its table, and whether something moves that will stand still without a word. `chosen`: the names of
   * nodes, of which one must be at either end; null: any.
   */
  shown(members, requests, chosen = null, now = Date.now()) {
    if (members.length < 2) return [h("p", { class: "none" }, "No other node is known."), false];
    const links = this.#links(members, requests, now).filter((one) => !chosen || chosen.has(one.from) || chosen.has(one.to));
    if (!links.length && chosen) return [h("p", { class: "none" }, "Nothing has gone to or from these nodes yet."), false];
    if (!links.length) return [h("p", { class: "none" }, "Nothing has gone from one node to another yet."), false];
    const columns = [["From"], ["To"], ["Requests now", "n"], ["Caches now", "n"], ["Caches sent", "n"], ["In bytes", "n"], ["Failed", "n"]];
    const rows = links.slice(0, MOST_ROWS).map((one) => [one.key, [
      name(one.from), name(one.to), count(one.requests), count(one.underWay), count(one.sent), bytes(one.bytes), count(one.failed)]]);
    const more = links.length - rows.length;
    return [[
      h("div", { class: "between" }, picture(links), h("div", null, table("Between the nodes", columns, rows, ""),
        more > 0 ? h("p", { class: "none" }, `and ${more} more`) : null)),
    ], links.some((one) => one.fresh)];
  }

  #links(members, requests, now) {
    const found = new Map(caches(members).map((one) => [one.key, one]));
    for (const [from, to, under] of requests) {
      const key = JSON.stringify([from, to]);
      found.set(key, { key, from, to, sent: 0, bytes: 0, failed: 0, underWay: 0, ...found.get(key), requests: under });
    }
    for (const one of found.values()) one.fresh = (this.#sent.get(one.key)?.until ?? 0) > now;
    const weight = (one) => [one.requests ?? 0, one.underWay, one.sent];
    return [...found.values()].map((one) => ({ requests: 0, ...one })).sort((a, b) => {
      const [left, right] = [weight(a), weight(b)];
      const at = left.findIndex((value, i) => value !== right[i]);
      return at < 0 ? a.key.localeCompare(b.key) : right[at] - left[at];
    });
  }
}

function caches(members) {
  return members.flatMap((member) => (member.status?.kv_share?.links ?? []).map((one) => ({
    key: JSON.stringify([member.node, one.node]),
    from: member.node,
    to: one.node,
    sent: number(one.sent) ?? 0,
    bytes: number(one.sent_bytes) ?? 0,
    failed: number(one.failed) ?? 0,
    underWay: number(one.under_way) ?? 0,
  })));
}

function picture(links) {
  const nodes = [];
  for (const one of links) for (const node of [one.from, one.to]) if (!nodes.includes(node) && nodes.length < MOST_NODES) nodes.push(node);
  nodes.sort((a, b) => a.localeCompare(b));
  const rows = new Map(nodes.map((node, i) => [node, ROW * (i + 0.5)]));
  const drawn = links.filter((one) => rows.has(one.from) && rows.has(one.to));
  const height = ROW * nodes.length;
  // No wider a margin than the longest label needs.
  const left = Math.max(0, EDGE - MARGIN - Math.max(...nodes.map((node) => wide(cut(node)))));
  const far = Math.max(ROW, ...drawn.map((one) => Math.abs(rows.get(one.from) - rows.get(one.to))));
  const steep = Math.min(0.55, (WIDTH - EDGE - 60) / far); // the longest arc still fits
  return h("figure", { class: "flows" },
    h("svg", { viewBox: `${left.toFixed(1)} 0 ${WIDTH} ${height}`, role: "img", "aria-label": said(drawn) },
      // The quiet ones below, so that what moves is seen.
      drawn.filter((one) => one.sent || one.underWay).map((one) => arc(one, "cache", one.underWay > 0 || one.fresh, rows, steep)),
      drawn.filter((one) => one.requests).map((one) => arc(one, "request", true, rows, steep)),
      nodes.map((node) => h("g", { key: `node ${node}` },
        h("title", null, node),
        h("rect", { class: "dot", x: EDGE - 4, y: rows.get(node) - 10, width: 4, height: 20 }),
        h("text", { x: EDGE - MARGIN, y: rows.get(node) + 4, "text-anchor": "end" }, cut(node))))),
    h("figcaption", { "aria-hidden": "true" },
      h("span", { class: "key request" }, "requests now"), " ", h("span", { class: "key cache" }, "caches; they run while one is sent")));
}

/** Out at the upper half of a node, in at its lower half: both ways between two nodes are two arcs. */
function arc(one, kind, moves, rows, steep) {
  const off = kind === "request" ? 4 : 8;
  const [from, to] = [rows.get(one.from) - off, rows.get(one.to) + off];
  const bulge = 30 + Math.abs(to - from) * steep + (kind === "cache" ? 12 : 0);
  const control = EDGE + (bulge * 4) / 3;
  return h("g", { key: `${kind} ${one.key}`, class: `flow ${kind}`, "data-state": moves ? "moving" : null },
    h("title", null, words(one)),
    h("path", { class: "line", d: `M${EDGE} ${from}C${control} ${from} ${control} ${to} ${EDGE + 6} ${to}` }),
    h("path", { class: "tip", d: `M${EDGE + 8} ${to - 4}L${EDGE + 1} ${to}L${EDGE + 8} ${to + 4}Z` }));
}

function said(links) {
  return `What goes from node to node: ${links.slice(0, MOST_NODES).map(words).join("; ")}`;
}

function words(one) {
  const found = [one.requests ? plural(one.requests, "request", "requests") : null,
    one.underWay ? `${plural(one.underWay, "cache", "caches")} now` : null, one.sent ? `${plural(one.sent, "cache", "caches")} sent` : null];
  return `${one.from} to ${one.to}: ${found.filter(Boolean).join(", ") || "nothing"}`;
}

function wide(text) {
  return pen.measureText(text).width;
}

function cut(text) {
  const letters = [...text];
  let shown = letters.length > LABEL ? `${letters.slice(0, LABEL - 1).join("")}…` : text;
  for (let most = Math.min(letters.length, LABEL) - 1; wide(shown) > EDGE - MARGIN; most -= 1) shown = `${letters.slice(0, most).join("")}…`;
  return shown;
}

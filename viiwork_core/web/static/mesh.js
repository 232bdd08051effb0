// The mesh: its nodes, where each model is served, what names stand for, and the requests on their way.

import { Activity, Flights } from "./activity.js";
import { Between } from "./between.js";
import { cards } from "./cards.js";
import { h, name, show, table } from "./elements.js";
import { Live } from "./live.js";
import { shares, total } from "./shares.js";
import { bytes, count, memory, moment, number, percent, plural, short } from "./words.js";

const place = (id) => document.getElementById(id);
const activity = new Activity();
const flights = new Flights();
const between = new Between();
let cluster = null;
let aliases = [];

new Live("/v1/mesh/stream", {
  began() {
    flights.clear();
  },
  heard: {
    cluster(told) {
      cluster = told;
      flights.keep(new Set(told.members.map((one) => one.node_id)));
      between.heard(told.members);
    },
    aliases(told) {
      aliases = told.aliases;
    },
    activity(event) {
      activity.add(event);
      flights.add(event);
    },
  },
  paint,
});

function paint() {
  if (!cluster) return false;
  document.title = `Mesh of ${cluster.view} · viiwork`;
  show(place("head"), h("h1", null, "Mesh"), h("p", { class: "lead" }, lead()));
  show(place("nodes"), nodes());
  const [flows, fading] = between.shown(cluster.members, flights.between());
  show(place("between"), flows);
  show(place("models"), models());
  const [under, moving] = flights.shown();
  show(place("flights"), under);
  show(place("aliases"), names());
  show(place("caches"), caches());
  show(place("activity"), activity.shown(true));
  return moving || fading;
}

function sum(of) {
  return cluster.members.flatMap((one) => one.models ?? []).reduce((all, one) => all + (number(one[of]) ?? 0), 0);
}

function lead() {
  const kind = cluster.mesh === "none" ? "No mesh" : `${cluster.mesh === "open" ? "An open" : "A secured"} mesh`;
  return [
    `${kind}, seen from ${cluster.view}`,
    plural(cluster.members.length, "node", "nodes"),
    plural(cluster.models.length, "model", "models"),
    `${count(sum("busy"))} of ${count(sum("slots"))} slots busy`,
    `${count(sum("queued"))} waiting`,
  ].join(" · ");
}

function nodes() {
  const columns = [["Node"], ["State"], ["Busy", "n"], ["Slots", "n"], ["Waiting", "n"], ["Memory", "n"], ["GPUs"], ["Version"]];
  const rows = cluster.members.map((one) => [one.node_id, nodeCells(one)]);
  return table("Nodes", columns, rows, "No node is known.");
}

function nodeCells(one) {
  const figure = (of) => (one.models ? count(one.models.reduce((all, each) => all + (number(each[of]) ?? 0), 0)) : "–");
  const status = one.status;
  const state = one.state !== "alive" ? one.state : one.stale ? "silent" : one.draining ? "draining" : "alive";
  return [
    one.node === cluster.view ? [h("a", { href: "/" }, name(one.node)), h("small", null, " this node")] : h("a", { href: `http://${one.addr}/` }, name(one.node)),
    h("span", { class: "state", "data-state": state }, state),
    figure("busy"),
    figure("slots"),
    figure("queued"),
    status && number(status.host_mem_total_mb) !== null ? `${memory(status.host_mem_used_mb)} of ${memory(status.host_mem_total_mb)}` : "–",
    cards(status?.gpus),
    one.ver ?? "–",
  ];
}

function models() {
  const found = [];
  for (const member of cluster.members) {
    const tokens = new Map((member.status?.models ?? []).map((one) => [one.name, one]));
    for (const one of member.models ?? []) found.push({ member, one, more: tokens.get(one.name) });
    // What is taken down has no room to report.
    for (const one of tokens.values()) if (one.parked) found.push({ member, one, more: one });
  }
  found.sort((a, b) => a.one.name.localeCompare(b.one.name) || a.member.node.localeCompare(b.member.node));
  let last = null;
  const rows = found.map(({ member, one, more }) => {
    const first = one.name !== last;
    last = one.name;
    return [`${one.name} ${member.node_id}`, modelCells(member, one, more, first), first ? "first" : null];
  });
  const columns = [["Model"], ["Node"], ["Engine"], ["Backends", "n"], ["Busy", "n"], ["Slots", "n"], ["Waiting", "n"], ["Context", "n"], ["Tokens", "n"], ["Reused", "n"], ["Try"]];
  return table("Models by node", columns, rows, "No node serves a model.");
}

function modelCells(member, one, more, first) {
  const where = new URLSearchParams({ model: one.name, host: member.node });
  const reused = more?.prompt_tokens_total ? more.cached_tokens_total / more.prompt_tokens_total : null;
  return [
    first ? name(one.name) : h("span", { class: "unseen" }, one.name),
    name(member.node),
    one.engine,
    one.parked ? h("span", { class: "state", "data-state": "parked" }, "parked") : backends(one),
    count(one.busy),
    count(one.slots),
    count(one.queued),
    one.ctx ? count(one.ctx) : "–",
    short(more?.tokens_total),
    percent(reused),
    one.parked ? null : h("a", { href: `/chat?${where}`, "aria-label": `Chat with ${one.name} on ${member.node}` }, "chat"),
  ];
}

function backends(one) {
  const well = one.healthy_backends === one.backends;
  return h("span", { class: "state", "data-state": well ? "healthy" : one.healthy_backends ? "starting" : "unhealthy" }, `${count(one.healthy_backends)} of ${count(one.backends)}`);
}

function names() {
  const columns = [["Alias"], ["Target"], ["Fallbacks"], ["State"], ["Means now"], ["Written"]];
  const rows = aliases.map((one) => [one.name, [
    name(one.name),
    one.target ? name(one.target) : "–",
    one.fallbacks.length ? name(one.fallbacks.join(", ")) : "–",
    h("span", { class: "state", "data-state": one.state }, one.state),
    one.resolved ? name(one.resolved) : "nothing",
    h("span", { class: "way" }, `${moment(one.updated_at / 1000)} by `, name(one.updated_by)),
  ]]);
  return table("Aliases", columns, rows, "No name stands for a model.");
}

function caches() {
  const rows = cluster.members.filter((one) => one.status?.kv_share).map((one) => {
    const kv = one.status.kv_share;
    return [one.node_id, [name(one.node), count(kv.sent), bytes(kv.sent_bytes), count(kv.failed), count(kv.dropped), shares(total(kv.imports ?? []))]];
  });
  const columns = [["Node"], ["Sent", "n"], ["Bytes", "n"], ["Failed", "n"], ["Dropped", "n"], ["Turns after an import, by how much of the prompt was reused"]];
  return table("Caches that move", columns, rows, "No node shares caches.");
}

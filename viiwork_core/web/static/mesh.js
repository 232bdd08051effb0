// The mesh: its nodes, where each model is served, what names stand for, and the requests on their way.

import { Activity, Flights } from "./activity.js";
import { Between } from "./between.js";
import { cards } from "./cards.js";
import { h, name, show, table } from "./elements.js";
import { Filter } from "./filter.js";
import { Live } from "./live.js";
import { shares, total } from "./shares.js";
import { bytes, count, memory, moment, number, percent, plural, short } from "./words.js";

const place = (id) => document.getElementById(id);
const activity = new Activity();
const flights = new Flights();
const between = new Between();
const filter = new Filter(draw);
let cluster = null;
let aliases = [];
let painted = null; // the members and their ways of the last painting: while it is paused, what is filtered

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
  painted = { members: cluster.members, ways: flights.between() };
  const fading = draw();
  const [under, moving] = flights.shown();
  show(place("flights"), under);
  show(place("aliases"), names());
  show(place("activity"), activity.shown(true));
  return moving || fading;
}

/** What the filter narrows. Returns whether something in it moves that will stand still without a word. */
function draw() {
  if (!painted) return false;
  const { members, ways } = painted;
  const found = members.filter((one) => filter.has(one.node, state(one), ...served(one).flatMap(texts)));
  filter.tell(found.length, members.length);
  show(place("nodes"), nodes(found));
  const [flows, fading] = between.shown(members, ways, filter.on ? new Set(found.map((one) => one.node)) : null);
  show(place("between"), flows);
  show(place("models"), models(members));
  show(place("caches"), caches(found));
  return fading;
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

function nodes(found) {
  const columns = [["Node"], ["State"], ["Busy", "n"], ["Slots", "n"], ["Waiting", "n"], ["Memory", "n"], ["GPUs"], ["Version"]];
  const rows = found.map((one) => [one.node_id, nodeCells(one)]);
  return table("Nodes", columns, rows, filter.on ? "No node has these words." : "No node is known.");
}

function state(one) {
  return one.state !== "alive" ? one.state : one.stale ? "silent" : one.draining ? "draining" : "alive";
}

function nodeCells(one) {
  const figure = (of) => (one.models ? count(one.models.reduce((all, each) => all + (number(each[of]) ?? 0), 0)) : "–");
  const status = one.status;
  return [
    one.node === cluster.view ? [h("a", { href: "/" }, name(one.node)), h("small", null, " this node")] : h("a", { href: `http://${one.addr}/` }, name(one.node)),
    h("span", { class: "state", "data-state": state(one) }, state(one)),
    figure("busy"),
    figure("slots"),
    figure("queued"),
    status && number(status.host_mem_total_mb) !== null ? `${memory(status.host_mem_used_mb)} of ${memory(status.host_mem_total_mb)}` : "–",
    cards(status?.gpus),
    one.ver ?? "–",
  ];
}

/** A node's models: what each reports, and what is known of it besides. */
function served(member) {
  const told = new Map((member.status?.models ?? []).map((one) => [one.name, one]));
  const found = (member.models ?? []).map((one) => ({ member, one, more: told.get(one.name) }));
  // What is taken down has no room to report.
  for (const one of told.values()) if (one.parked) found.push({ member, one, more: one });
  return found;
}

/** What the filter finds a model by. */
function texts({ one }) {
  return one.parked ? [one.name, "parked"] : [one.name];
}

function models(members) {
  const found = members.flatMap(served).filter((each) => filter.has(each.member.node, state(each.member), ...texts(each)));
  found.sort((a, b) => a.one.name.localeCompare(b.one.name) || a.member.node.localeCompare(b.member.node));
  let last = null;
  const rows = found.map(({ member, one, more }) => {
    const first = one.name !== last;
    last = one.name;
    return [`${one.name} ${member.node_id}`, modelCells(member, one, more, first), first ? "first" : null];
  });
  const columns = [["Model"], ["Node"], ["Engine"], ["Backends", "n"], ["Busy", "n"], ["Slots", "n"], ["Waiting", "n"], ["Context", "n"], ["Tokens", "n"], ["Reused", "n"], ["Try"]];
  return table("Models by node", columns, rows, filter.on ? "No model has these words." : "No node serves a model.");
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

function caches(found) {
  const rows = found.filter((one) => one.status?.kv_share).map((one) => {
    const kv = one.status.kv_share;
    return [one.node_id, [name(one.node), count(kv.sent), bytes(kv.sent_bytes), count(kv.failed), count(kv.dropped), shares(total(kv.imports ?? []))]];
  });
  const columns = [["Node"], ["Sent", "n"], ["Bytes", "n"], ["Failed", "n"], ["Dropped", "n"], ["Turns after an import, by how much of the prompt was reused"]];
  return table("Caches that move", columns, rows, filter.on ? "None of these nodes shares caches." : "No node shares caches.");
}

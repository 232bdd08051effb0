// This node: its models and their backends, who waits, the last hour, and what happens.

import { Activity, Flights } from "./activity.js";
import { h, name, show, table, whyLink } from "./elements.js";
import { graph, HOUR_S } from "./graphs.js";
import { Live } from "./live.js";
import { readable } from "./prompts.js";
import { shares, total } from "./shares.js";
import { bytes, count, memory, millis, number, percent, plural, seconds, short, span, watts } from "./words.js";

const MOST_SAMPLES = 360;

const place = (id) => document.getElementById(id);
const activity = new Activity();
const flights = new Flights();
let status = null;
let samples = [];

const live = new Live("/v1/status/stream", {
  began() {
    flights.clear();
    remember();
  },
  heard: {
    status(told) {
      status = told;
      flights.keep(new Set([told.node_id]));
    },
    sample(told) {
      if (told) add([told]);
    },
    activity(event) {
      activity.add(event);
      flights.add(event);
    },
  },
  paint,
});

async function remember() {
  try {
    const answer = await fetch("/v1/status/history");
    if (answer.ok) add((await answer.json()).samples);
  } catch {
    // The node has gone again: the stream notices, and comes back here.
  }
  live.touch();
}

/** A node that was restarted has no past, and this page may still know it. */
function add(more) {
  const known = new Map(samples.map((one) => [one.t, one]));
  for (const one of more) known.set(one.t, one);
  samples = [...known.values()].sort((a, b) => a.t - b.t).slice(-MOST_SAMPLES);
}

function paint() {
  if (!status) return false;
  document.title = `${status.node} · viiwork`;
  show(place("head"), h("h1", null, status.node), h("p", { class: "lead" }, lead()));
  show(place("models"), models());
  const [under, moving] = flights.shown();
  show(place("flights"), under);
  show(place("queue"), queue());
  show(place("hour"), hour());
  show(place("caches"), caches());
  show(place("activity"), activity.shown(false));
  return moving;
}

function lead() {
  const parts = [
    `viiwork ${status.ver}`,
    status.uptime_s < 60 ? "up for less than a minute" : `up ${span(status.uptime_s)}`,
    status.mesh === "none" ? "no mesh" : `${status.mesh} mesh with ${plural(status.members.length, "other node", "other nodes")}`,
  ];
  if (number(status.host_mem_total_mb) !== null) {
    parts.push(`memory ${memory(status.host_mem_used_mb)} of ${memory(status.host_mem_total_mb)}`);
  }
  return parts.join(" · ");
}

function models() {
  if (!status.models.length) return h("p", { class: "none" }, "No models are configured here.");
  return status.models.map(model);
}

function model(one) {
  const reused = one.prompt_tokens_total ? one.cached_tokens_total / one.prompt_tokens_total : null;
  const facts = [
    ["Slots", one.slots ? `${one.busy} of ${one.slots} busy` : "none"],
    ["Waiting", count(one.queued)],
    ["Context", one.ctx ? `${count(one.ctx)} tokens` : "–"],
    ["Requests", one.requests_total === undefined ? "–" : count(one.requests_total)],
    ["Tokens", short(one.tokens_total)],
    ["Prompts reused", percent(reused)],
  ];
  return h("article", { key: one.name, class: "model" },
    h("h3", null, one.name, " ", h("small", null, one.engine, one.engine_version ? ` ${one.engine_version}` : "", one.parked ? " · parked" : "")),
    h("dl", { class: "facts" }, facts.map(([what, value]) => h("div", null, h("dt", null, what), h("dd", null, value)))),
    table(`Backends of ${one.name}`, [["Backend"], ["State"], ["Slots"], ["GPUs"], ["Memory", "n"], ["Process", "n"], ["Restarts", "n"]],
      one.backends.map((backend) => [backend.id, backendCells(backend)]),
      one.parked ? `It is taken down. viiwork up ${one.name} starts it again.` : "It has no backends."));
}

function backendCells(one) {
  return [
    name(one.id),
    h("span", { class: "state", "data-state": one.status }, one.status, phase(one)),
    slots(one),
    one.gpus ? one.gpus.join(", ") : "–",
    memory(one.rss_mb),
    one.pid ?? "–",
    count(one.respawns),
  ];
}

function phase(one) {
  if (one.status === "healthy") return null;
  const known = number(one.progress);
  return [
    one.phase ? `, ${one.phase}` : null,
    known === null ? null : [" ", h("progress", { max: 1, value: known, "aria-label": `${one.id}: ${one.phase ?? "progress"}` }), ` ${percent(known)}`],
    one.reason ? h("span", { class: "reason" }, one.reason) : null,
  ];
}

function slots(one) {
  if (!one.slot_states?.length) return "–";
  return [
    h("span", { class: "slots", "aria-hidden": "true" }, one.slot_states.map((state, i) => h("i", { key: i, "data-state": state, title: `slot ${i}: ${state}` }))),
    h("span", { class: "quiet" }, told(one.slot_states)),
  ];
}

function told(states) {
  const found = new Map();
  for (const state of states) found.set(state, (found.get(state) ?? 0) + 1);
  return [...found].map(([state, n]) => `${n} ${state}`).join(", ");
}

function queue() {
  const waiting = status.models.flatMap((one) => (one.queue ?? []).map((each) => ({ model: one.name, ...each })));
  waiting.push(...(status.queue ?? []));
  const columns = [["Model"], ["Place", "n"], ["Waited", "n"], ["Expected", "n"], ["Request"]];
  const rows = waiting.map((one) => [one.request_id, [name(one.model), count(one.position), seconds(one.waited_s), seconds(one.estimate_s), whyLink(one.request_id)]]);
  return table("Requests that wait", columns, rows, "Nobody waits.");
}

function hour() {
  const now = samples.at(-1)?.t ?? Date.now() / 1000;
  const line = (title, of, more) => graph(title, samples.map((one) => [one.t, of(one)]), { now, ...more });
  const whole = { text: (value) => count(Math.round(value)) };
  const node = h("div", { class: "graphs", key: "node" },
    line("Busy slots", (one) => number(one.busy), { ...whole, top: Math.max(1, ...samples.map((one) => one.slots)) }),
    line("Waiting", (one) => number(one.queued), whole),
    line("Memory", (one) => number(one.host_mem_used_mb), { text: memory, top: number(status.host_mem_total_mb) }));
  const cards = status.gpus ?? [];
  if (!cards.length) return [node, h("p", { class: "none" }, status.gpus ? "This machine has no GPUs that are known." : "The GPUs cannot be read.")];
  const watted = cards.map((one) => number(one.power_w));
  // A sum is one only if every card tells.
  const sum = watted.every((one) => one !== null) ? `, ${watts(watted.reduce((all, one) => all + one, 0))} together` : "";
  return [node, h("p", { class: "none" }, plural(cards.length, "GPU", "GPUs"), sum), cards.map((card) => cardGraphs(card, line))];
}

function cardGraphs(card, line) {
  const of = (figure) => (one) => number(one.gpus?.find((each) => each.index === card.index)?.[figure]);
  return h("div", { key: `gpu ${card.index}` },
    h("h3", null, `GPU ${card.index} `, h("small", null, [card.name, card.target].filter(Boolean).join(" · "))),
    h("div", { class: "graphs" },
      line("Load", of("util"), { text: (value) => percent(value / 100), top: 100 }),
      line("Video memory", of("vram_used_mb"), { text: memory, top: number(card.vram_total_mb) }),
      line("Power", of("power_w"), { text: watts })));
}

function caches() {
  const kv = status.kv_share;
  const sent = !kv ? "No caches move to or from this node."
    : kv.sent === undefined ? "This node sends no caches."
    : `Sent ${count(kv.sent)}, ${bytes(kv.sent_bytes)} in all; ${count(kv.failed)} failed, ${count(kv.dropped)} were dropped before they were sent.`;
  const counted = ["Sent", "Of files", "Received", "Imported", "Useless", "Failed", "A send", "An import"].map((title) => [title, "n"]);
  const shared = status.models.filter((one) => one.kv_share);
  const told = h("p", { class: kv ? null : "none" }, sent);
  if (!shared.length) return told;
  // Two tables: one of all these columns would be wider than a screen.
  const turned = [["Model"], ["Turns from another host"], ["Turns from another backend"], ["Turns that stayed"]];
  return [
    told,
    table("Caches by model", [["Model"], ["Moving"], ...counted], shared.map((one) => [one.name, cacheCells(one)]), ""),
    h("h3", null, "How much of their prompts turns reused"),
    table("Turns by model", turned, shared.map((one) => [one.name, turnCells(one)]), ""),
  ];
}

function cacheCells(model) {
  const kv = model.kv_share;
  return [
    name(model.name),
    h("span", { class: "state", "data-state": { on: "healthy", waiting: "starting" }[kv.state] ?? kv.state }, kv.state,
      kv.group ? [", ", h("span", { class: "group" }, `group ${kv.group}`)] : null, kv.reason ? h("span", { class: "reason" }, kv.reason) : null),
    kv.sent ? `${count(kv.sent)}, ${bytes(kv.sent_bytes)}` : count(kv.sent),
    percent(kv.sent_share),
    count(kv.received),
    count(kv.imported),
    count(kv.useless),
    // Those that were not sent, and those that were not imported.
    kv.failed === undefined ? count(null) : count(kv.failed + kv.import_failed),
    each(kv.send_seconds, kv.sent + kv.failed),
    each(kv.import_seconds, kv.imported),
  ];
}

/** By where the turn before ran. */
function turnCells(model) {
  return [name(model.name), ...["host", "backend", "none"].map((kind) => shares(total([model.kv_share.turns?.[kind] ?? {}])))];
}

/** The mean of so many, which took `sum` seconds together. */
function each(sum, many) {
  return millis(many ? (1000 * sum) / many : null);
}

if (place("read")) readable(place("read"), place("asked"));

// A page that is open for hours forgets what is older than its graphs.
setInterval(() => {
  const newest = samples.at(-1)?.t ?? 0;
  samples = samples.filter((one) => one.t > newest - HOUR_S);
}, 60000);

// Activity: the newest events, and which requests are under way. Both are bounded, however long a page stays open.

import { h, name, table, whyLink } from "./elements.js";
import { clock, seconds } from "./words.js";

export const MOST_EVENTS = 200;
export const MOST_FLIGHTS = 500;
const SHOWN_FLIGHTS = 50;
const LINGER_MS = 3000; // a request that is over is seen to be
const ENDED = / (done|aborted by client|aborted|failed|refused|lost) \((\d+\.\d)s\)$/;
const BEGAN = / first token after (\d+\.\d)s$/;

/** The newest events of one node or all. An event is known by its node's run and its number: some are told twice. */
export class Activity {
  #events = [];
  #known = new Set();

  add(event) {
    const key = `${event.node_id} ${event.n}`;
    if (this.#known.has(key)) return;
    this.#known.add(key);
    // What another node told before is heard late.
    let at = this.#events.length;
    while (at > 0 && this.#events[at - 1].t > event.t) at -= 1;
    this.#events.splice(at, 0, { ...event, key });
    if (this.#events.length > MOST_EVENTS) this.#known.delete(this.#events.shift().key);
  }

  get size() {
    return this.#events.length;
  }

  shown(nodes) {
    if (!this.#events.length) return h("p", { class: "none" }, "Nothing has happened in the last half minute.");
    const rows = this.#events.toReversed().map((one) =>
      h("li", { key: one.key, "data-state": one.replay ? "replay" : null, class: one.type },
        h("span", { class: "time" }, clock(one.t)),
        nodes ? h("span", { class: "who" }, one.hostname) : null,
        h("span", { class: "what" }, one.message, one.replay ? h("small", null, " earlier") : null),
        one.rid ? whyLink(one.rid) : null));
    return h("ol", { class: nodes ? "events named" : "events", tabindex: "0", "aria-label": "Events, the newest first" }, rows);
  }
}

/** Requests under way, by the run of the node that told of them, and their id. */
export class Flights {
  #flights = new Map();

  add(event, now = Date.now()) {
    if (!event.rid) return;
    const key = `${event.node_id} ${event.rid}`;
    const ended = ENDED.exec(event.message);
    const began = BEGAN.exec(event.message);
    const place = event.message.replace(ended ? ENDED : BEGAN, "");
    const before = this.#flights.get(key);
    if (ended && (!before || event.replay)) return void this.#flights.delete(key); // it was over before anybody looked
    const flight = before && !before.end ? before : { since: event.replay ? Math.min(now, event.t * 1000) : now };
    Object.assign(flight, { key, place, rid: event.rid, node: event.hostname, nodeId: event.node_id });
    flight.first = began ? Number(began[1]) : before && before.place === place ? before.first : undefined;
    if (ended) Object.assign(flight, { end: ended[1], took: Number(ended[2]), until: now + LINGER_MS });
    this.#flights.delete(key);
    this.#flights.set(key, flight);
    if (this.#flights.size > MOST_FLIGHTS) this.#flights.delete(this.#flights.keys().next().value);
  }

  /** The past comes again. */
  clear() {
    this.#flights.clear();
  }

  /** Only these runs of nodes are there. */
  keep(runs) {
    for (const [key, one] of this.#flights) if (!one.end && !runs.has(one.nodeId)) this.#flights.delete(key);
  }

  get size() {
    return this.#flights.size;
  }

  #swept(now) {
    for (const [key, one] of this.#flights) if (one.end && one.until < now) this.#flights.delete(key);
    return [...this.#flights.values()].sort((a, b) => a.since - b.since || a.key.localeCompare(b.key));
  }

  /** One row a request: the node where it came in, and where it runs. */
  #joined(now) {
    const rows = new Map();
    for (const one of this.#swept(now)) {
      const [model, place] = one.place.split(" → ");
      const other = rows.get(one.rid);
      const forwards = (place ?? "").startsWith("peer ");
      if (other && other.peer === one.node) Object.assign(other, { runs: place, first: other.first ?? one.first });
      else if (other && forwards && place === `peer ${other.node}`) {
        rows.set(one.rid, { ...one, model, runs: other.runs, peer: other.node, first: one.first ?? other.first });
      } else rows.set(other ? one.key : one.rid, { ...one, model, runs: forwards ? null : place, peer: forwards ? place.slice(5) : null });
    }
    return [...rows.values()];
  }

  /** How many are on their way from one node to another: [from, to, requests]. */
  between(now = Date.now()) {
    const found = new Map();
    for (const one of this.#joined(now)) {
      if (one.end || !one.peer) continue;
      const key = JSON.stringify([one.node, one.peer]);
      found.set(key, (found.get(key) ?? 0) + 1);
    }
    return [...found].map(([key, requests]) => [...JSON.parse(key), requests]);
  }

  /** The table, and whether it counts seconds. */
  shown(now = Date.now()) {
    const flights = this.#joined(now);
    const rows = flights.slice(0, SHOWN_FLIGHTS).map((one) => [one.key, [
      name(one.model),
      h("span", { class: "way" }, name(one.node), one.peer ? [h("span", { class: "arrow" }, " → "), name(one.peer)] : null),
      one.runs ? name(one.runs) : h("span", { class: "faint" }, "at ", name(one.peer)),
      one.end ? h("span", { class: "state", "data-state": one.end === "done" ? "healthy" : "unhealthy" }, one.end)
        : one.first !== undefined ? "answering" : "reading",
      seconds(one.first),
      seconds(one.end ? one.took : (now - one.since) / 1000),
      whyLink(one.rid),
    ], one.end ? "over" : null]);
    const more = flights.length - rows.length;
    const columns = [["Model"], ["Node"], ["Runs at"], ["State"], ["First token", "n"], ["So far", "n"], ["Request"]];
    const found = [table("Requests under way", columns, rows, "No request is under way.")];
    if (more > 0) found.push(h("p", { class: "none" }, `and ${more} more`));
    return [found, flights.length > 0];
  }
}

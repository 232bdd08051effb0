// Why: which places a request could have gone to, what decided, and what became of it.

import { h, name, show, table } from "./elements.js";
import { count, DASH, millis, moment } from "./words.js";

const UNDER = "/why/";
const LEGEND =
  "Rank: the order in which the places were tried. Free: its slots. First token: how long it was expected to take there. " +
  "Price: that, and what the policy adds to it, by which it chose. Holds: tokens of the conversation that its cache has already. " +
  "Away: a round trip to it. Crowd: what one more conversation would cost the others there.";
const account = document.getElementById("account");
const rid = document.getElementById("rid");

document.getElementById("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  const wanted = rid.value.trim();
  if (wanted) location.assign(UNDER + encodeURIComponent(wanted));
});

if (location.pathname.startsWith(UNDER)) {
  rid.value = asked(location.pathname.slice(UNDER.length));
  look(rid.value);
}

function asked(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

async function look(id) {
  document.title = `Why ${id} · viiwork`;
  show(account, h("p", { class: "none" }, "Asking the nodes"));
  try {
    const answer = await fetch(`/v1/why/${encodeURIComponent(id)}`);
    const body = await answer.json();
    show(account, answer.ok ? told(body) : h("p", { class: "notice" }, body.error?.message ?? `The node answered ${answer.status}.`));
  } catch (error) {
    show(account, h("p", { class: "notice" }, `The node does not answer: ${error.message}.`));
  }
}

function told(one) {
  return [
    h("dl", { class: "account" }, facts(one).map(([name, value]) => h("div", { key: name }, h("dt", null, name), h("dd", null, value)))),
    one.held_out ? choice("Waited although another had room", one.held_out) : null,
    (one.choices ?? []).map((each) => choice(each.chosen ? `Chose ${each.chosen}` : "Chose none", each)),
    one.tries?.length ? tries(one.tries) : null,
    one.choices?.length || one.held_out ? h("p", { class: "hint" }, LEGEND) : null,
  ];
}

function facts(one) {
  const ran = one.backend ?? (one.peer ? `node ${one.peer}` : "nowhere");
  const found = [
    ["Came", `${moment(one.at)}, at ${one.node}, ${one.path}`],
    ["Model", one.alias ? `${one.model}, asked for as ${one.alias}` : one.model],
    ["Session", session(one.session ?? {})],
    ["State", one.state === "over" ? `over, ${one.status}${one.reason ? `: ${one.reason}` : ""}` : one.state],
    ["Waited", millis(one.queued_ms)],
    ["Ran at", one.state === "waiting" ? "nowhere yet" : ran],
    ["First token", millis(one.first_token_ms)],
    ["In all", millis(one.total_ms)],
    ["Prompt", tokens(one)],
    ["Answer", one.completion_tokens === undefined ? DASH : `${count(one.completion_tokens)} tokens`],
  ];
  if (one.pin) found.push(["Asked for", `${one.pin} alone`]);
  if (one.prefer) found.push(["Preferred", one.prefer.join(", ")]);
  if (one.forwarded_here) found.push(["Forwarded", "by another node, which chose this one"]);
  return found;
}

function session(one) {
  if (!one.hash) return "none";
  const turn = one.begins ? "begins" : one.continues ? "continues" : "not known before";
  return `${one.hash}, by ${one.found}, ${turn}`;
}

function tokens(one) {
  if (one.prompt_tokens === undefined) return `about ${count(one.prompt_tokens_estimated)} tokens`;
  return `${count(one.prompt_tokens)} tokens, ${count(one.cached_tokens)} of them reused`;
}

function choice(title, one) {
  const places = [...(one.candidates ?? []), ...(one.full ?? [])];
  const columns = [["Place"], ["Rank", "n"], ["Free", "n"], ["First token", "n"], ["Price", "n"], ["Holds", "n"], ["Away", "n"], ["Note"]];
  return h("section", { class: "choice-made" },
    h("h2", null, title, h("small", null, ` after ${millis(one.after_ms)}`)),
    h("p", null, one.policy ? `${one.policy}: ` : "", one.rule),
    table(`${title}: the places`, columns, places.map((each) => [each.id, cells(each), each.id === one.chosen ? "chosen" : null]), "There was no place."));
}

function cells(one) {
  return [name(one.id), one.rank ?? DASH, `${one.free} of ${one.slots}`, millis(one.predicted_ms), millis(one.price_ms),
    count(one.held_tokens), millis(one.rtt_ms), h("span", { class: "wide" }, notes(one).join(", "))];
}

function notes(one) {
  const found = one.measured ? [] : ["not measured"];
  if (one.rank === undefined) found.push(one.free ? "left out" : "full");
  if (one.replica_tokens !== undefined) found.push(`replica of ${count(one.replica_tokens)}`);
  if (one.waiting) found.push(`${count(one.waiting)} waiting`);
  if (one.wait_ms !== undefined) found.push(`wait ${millis(one.wait_ms)}`);
  if (one.crowd_ms !== undefined) found.push(`crowd ${millis(one.crowd_ms)}`);
  return found;
}

function tries(all) {
  const rows = all.map((one, i) => [i, [name(one.place), millis(one.ms), h("span", { class: "wide" }, one.reason)]]);
  return h("section", null, h("h2", null, "Tried before"), table("Places that did not serve it", [["Place"], ["For", "n"], ["Why not"]], rows, ""));
}

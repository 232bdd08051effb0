// A chat with any model or alias, on any node that has it. The conversation lives in this page alone.

import { h, show, whyLink } from "./elements.js";
import { Reader } from "./reader.js";
import { count, millis, number } from "./words.js";

const ANY = "";
const MOST_TURNS = 400; // of the page; the model is sent all that it shows
const place = (id) => document.getElementById(id);
const [model, host, talk, words, send, stop] = ["model", "host", "talk", "words", "send", "stop"].map(place);
const wanted = new URLSearchParams(location.search);

let turns = [];
let session = anew();
let running = null;
let due = false;

/** A name by which the nodes keep a conversation together. Not randomUUID, which a page without TLS does not have. */
function anew() {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (one) => one.toString(16).padStart(2, "0")).join("");
}

// What can be chosen

async function ask(path) {
  const answer = await fetch(path);
  if (answer.status === 401) location.assign(`/login?next=${encodeURIComponent(location.pathname + location.search)}`);
  if (!answer.ok) throw new Error(`${path} answered ${answer.status}`);
  return answer.json();
}

async function listModels() {
  const before = model.value;
  const { data } = await ask("/v1/models");
  const named = data.map((one) => h("option", { key: one.id, value: one.id }, one.target ? `${one.id} → ${one.target}` : one.id));
  show(model, named.length ? named : h("option", { value: "" }, "no model is served"));
  const first = [before, wanted.get("model")].find((name) => name && data.some((one) => one.id === name));
  if (first) model.value = first;
  await listHosts();
  if (!before && wanted.has("host")) host.value = wanted.get("host");
  if (host.selectedIndex < 0) host.value = ANY;
}

async function listHosts() {
  const before = host.value;
  const { models } = await ask(`/v1/fleet/capacity?${new URLSearchParams({ model: model.value })}`);
  const hosts = (models[0]?.hosts ?? []).filter((one) => !one.stale);
  const named = hosts.map((one) => h("option", { key: one.node, value: one.node }, `${one.node} (${one.free} of ${one.slots} free)`));
  show(host, h("option", { key: ANY, value: ANY }, "any node"), named);
  host.value = hosts.some((one) => one.node === before) ? before : ANY;
}

model.addEventListener("focus", () => listModels().catch(failed));
model.addEventListener("change", () => listHosts().catch(failed));
host.addEventListener("focus", () => listHosts().catch(failed));
listModels().catch(failed);

function failed(error) {
  note(`The node does not answer: ${error.message}.`);
}

/** Said once, however often it is so. */
function note(text) {
  if (turns.at(-1)?.text !== text) turns.push({ role: "note", text });
  paint();
}

// A turn

place("say").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = words.value.trim();
  if (!text || running) return;
  if (!model.value) {
    note("No model is served now: see with the page Mesh what is on its way.");
    return;
  }
  words.value = "";
  turns.push({ role: "user", text });
  answer();
});

words.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  place("say").requestSubmit();
});

stop.addEventListener("click", () => running?.abort());
place("anew").addEventListener("click", () => {
  running?.abort();
  turns = [];
  session = anew();
  paint();
  words.focus();
});
place("choice").addEventListener("submit", (event) => event.preventDefault());

async function answer() {
  const told = { role: "assistant", text: "", thought: "", began: performance.now(), pieces: 0 };
  const messages = turns.filter((one) => one.role !== "note" && one.text).map((one) => ({ role: one.role, content: one.text }));
  turns.push(told);
  turns = turns.slice(-MOST_TURNS);
  const mine = (running = new AbortController());
  busy(true);
  try {
    await stream(messages, told, mine.signal);
  } catch (error) {
    told.broke = error.name === "AbortError" ? "Stopped." : error.told ?? "The answer broke off.";
  }
  told.over = performance.now();
  if (running === mine) running = null;
  busy(running !== null);
}

async function stream(messages, told, signal) {
  const where = host.value === ANY ? "" : `?${new URLSearchParams({ host: host.value })}`;
  const response = await fetch(`/v1/chat/completions${where}`, {
    method: "POST",
    headers: { "content-type": "application/json", "x-session-id": session },
    body: JSON.stringify({ model: model.value, messages, stream: true }),
    signal,
  });
  told.rid = response.headers.get("x-request-id");
  told.node = response.headers.get("x-viiwork-node");
  told.backend = response.headers.get("x-viiwork-backend");
  if (!response.ok) throw refused(await response.json().catch(() => null), response.status);
  const reader = new Reader(response.body);
  for await (const event of reader.events()) take(event, told);
  if (!reader.done) throw Object.assign(new Error(), { told: "The answer broke off." });
}

function refused(body, status) {
  return Object.assign(new Error(), { told: `${body?.error?.message ?? "The node refused"} (${status}).` });
}

function take(event, told) {
  if (event.error) throw refused(event, event.error.code ?? "failed");
  const delta = event.choices?.[0]?.delta ?? {};
  if (typeof delta.reasoning_content === "string") told.thought += delta.reasoning_content;
  if (typeof delta.content === "string") told.text += delta.content;
  if (delta.content || delta.reasoning_content) {
    told.first ??= performance.now();
    told.pieces += 1;
  }
  told.tokens = number(event.usage?.completion_tokens) ?? number(event.timings?.predicted_n) ?? told.tokens;
  soon();
}

// What is shown

function busy(is) {
  send.disabled = is;
  stop.disabled = !is;
  // A screen reader waits for the whole answer instead of reading every piece of it.
  talk.setAttribute("aria-busy", String(is));
  paint();
}

/** Once in 100 ms, however many pieces come. */
function soon() {
  if (due) return;
  due = true;
  setTimeout(paint, 100);
}

function paint() {
  due = false;
  const low = talk.scrollHeight - talk.scrollTop - talk.clientHeight < 40;
  show(talk, turns.length ? turns.map(turn) : h("p", { class: "none" }, "Nothing has been said yet."));
  if (low) talk.scrollTop = talk.scrollHeight;
}

function turn(one, i) {
  const who = { user: "You", assistant: one.node ?? "Waiting", note: "Note" }[one.role];
  return h("article", { key: i, class: `turn ${one.role}` },
    h("h2", null, who),
    one.thought ? h("details", null, h("summary", null, "Reasoning"), h("div", { class: "said" }, one.thought)) : null,
    h("div", { class: "said" }, one.text.trimStart()),
    one.broke ? h("p", { class: "broke" }, one.broke) : null,
    one.role === "assistant" ? h("p", { class: "facts-line" }, facts(one)) : null);
}

function facts(one) {
  const found = [one.backend, one.first ? `first token after ${millis(one.first - one.began)}` : null];
  if (one.over && one.first && one.over > one.first) {
    const tokens = one.tokens ?? one.pieces;
    found.push(`${count(tokens)} tokens, ${(tokens / ((one.over - one.first) / 1000)).toFixed(1)} a second`);
  }
  const text = found.filter(Boolean).join(" · ");
  return one.rid ? [text ? `${text} · ` : "", whyLink(one.rid)] : text;
}

paint();

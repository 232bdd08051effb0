// What was asked and answered, where the node keeps it: read when somebody wants to, and never kept beside the page.

import { h, show, table, whyLink } from "./elements.js";
import { clock, count, seconds } from "./words.js";

/** Make `button` read the node's prompt history into `place`. */
export function readable(button, place) {
  button.addEventListener("click", async () => {
    button.disabled = true;
    try {
      show(place, await read());
    } catch {
      show(place, h("p", { class: "none" }, "The node does not answer."));
    }
    button.disabled = false;
    button.textContent = "Read again";
  });
}

async function read() {
  const answer = await fetch("/v1/prompts");
  const told = await answer.json();
  if (!answer.ok) return h("p", { class: "notice" }, told.error.message);
  if (!told.prompts.length) return h("p", { class: "none" }, "Nothing has been kept yet.");
  return told.mode === "full" ? told.prompts.map(texts) : sizes(told.prompts);
}

function sizes(prompts) {
  const columns = [["At"], ["Model"], ["Messages", "n"], ["Characters", "n"], ["Prompt", "n"], ["Answer", "n"], ["Took", "n"], ["Request"]];
  const rows = prompts.map((one) => [one.rid, [
    clock(one.t), one.model, count(one.messages), count(one.prompt_chars), count(one.prompt_tokens), count(one.output_tokens),
    seconds(one.elapsed_ms / 1000), whyLink(one.rid),
  ]]);
  return table("What was asked", columns, rows, "");
}

function texts(one) {
  const part = (title, text) => text ? [h("h3", null, title), h("p", { class: "said" }, text)] : null;
  return h("article", { key: one.rid, class: "turn" },
    h("p", { class: "facts-line" }, `${clock(one.t)} · ${one.model} · ${one.status} · ${seconds(one.elapsed_ms / 1000)} · `, whyLink(one.rid)),
    part("Asked", one.prompt), part("Answered", one.output));
}

// Filter: only the rows with some words. They stand in the page's address: it can be shared, and survives a reload.

import { count, plural } from "./words.js";

const FEW = 8; // nodes that are seen at a glance
const SETTLED_MS = 250; // browsers refuse an address that changes more than a few times a second
const NAME = "filter";

export class Filter {
  #form = document.getElementById("filter");
  #field = document.getElementById("wanted");
  #found = document.getElementById("found");
  #words = [];
  #settling;

  /** `changed`: called when other rows are wanted. */
  constructor(changed) {
    this.#field.value = new URLSearchParams(location.search).get(NAME) ?? "";
    this.#read();
    const heard = () => {
      this.#read();
      clearTimeout(this.#settling);
      this.#settling = setTimeout(() => this.#write(), SETTLED_MS);
      changed();
    };
    this.#field.addEventListener("input", heard);
    this.#field.addEventListener("change", () => this.#write());
    this.#form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#write();
    });
    // Not every browser empties the field by itself.
    this.#field.addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || event.isComposing || !this.#field.value) return;
      event.preventDefault();
      this.#field.value = "";
      heard();
    });
  }

  /** Whether there are words to look for. */
  get on() {
    return this.#words.length > 0;
  }

  /** Whether each word stands in one of these texts, in any case. */
  has(...texts) {
    const all = texts.join("\n").toLowerCase();
    return this.#words.every((word) => all.includes(word));
  }

  /** Tell how many nodes were found. With few of them the field is only there for who uses it. */
  tell(found, nodes) {
    this.#form.hidden = nodes <= FEW && !this.#field.value && document.activeElement !== this.#field;
    const text = this.on ? `${count(found)} of ${plural(nodes, "node", "nodes")}` : plural(nodes, "node", "nodes");
    if (this.#found.textContent !== text) this.#found.textContent = text;
  }

  #read() {
    this.#words = this.#field.value.toLowerCase().split(/\s+/).filter(Boolean);
  }

  #write() {
    clearTimeout(this.#settling);
    const address = new URL(location.href);
    const text = this.#field.value.trim();
    if (text) address.searchParams.set(NAME, text);
    else address.searchParams.delete(NAME);
    if (address.href !== location.href) history.replaceState(history.state, "", address);
  }
}

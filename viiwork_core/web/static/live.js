// Live: one stream a page, and one painting each 200 ms at most, however much happens.

import { clock } from "./words.js";

const TICK_MS = 200;
const AGAIN_MS = 5000;
const FORGOTTEN_MS = 60000; // a page that nobody sees lets go of its connection: browsers have six for a node

export class Live {
  /** `heard`: by the name of an event, what is done with its data. `began`: the stream begins (again), with the past. */
  constructor(path, { heard, began, paint }) {
    this.path = path;
    this.heard = heard;
    this.began = began;
    this.paint = paint;
    this.dirty = true;
    this.paused = false;
    this.state = "connecting";
    this.sign = document.getElementById("live");
    this.button = document.getElementById("pause");
    this.button.addEventListener("click", () => this.#pause());
    document.addEventListener("visibilitychange", () => this.#seen());
    addEventListener("pagehide", () => this.#close());
    addEventListener("pageshow", (event) => event.persisted && this.#open());
    setInterval(() => this.#tick(), TICK_MS);
    this.#open();
  }

  /** Something is to be painted anew. */
  touch() {
    this.dirty = true;
  }

  #open() {
    this.#close();
    const source = (this.source = new EventSource(this.path));
    source.addEventListener("open", () => {
      this.#say("live");
      this.began();
    });
    source.addEventListener("error", () => {
      this.#say("reconnecting");
      // A browser tries again by itself after a break, and not after an answer that it did not expect.
      if (source.readyState === EventSource.CLOSED) this.#later();
    });
    for (const [name, hear] of Object.entries(this.heard)) {
      source.addEventListener(name, (event) => {
        hear(JSON.parse(event.data));
        this.told = Date.now() / 1000;
        this.dirty = true;
      });
    }
  }

  /** Later again, unless it is that a login has ended: then there is a page for that. */
  async #later() {
    this.again = setTimeout(() => this.#open(), AGAIN_MS);
    const answer = await fetch("/v1/status", { cache: "no-store" }).catch(() => null);
    if (answer?.status === 401) location.assign(`/login?next=${encodeURIComponent(location.pathname + location.search)}`);
  }

  #close() {
    clearTimeout(this.again);
    this.source?.close();
    this.source = null;
  }

  #seen() {
    clearTimeout(this.leaving);
    if (document.hidden) this.leaving = setTimeout(() => this.#close(), FORGOTTEN_MS);
    else if (!this.source) this.#open();
  }

  #pause() {
    this.paused = !this.paused;
    this.button.setAttribute("aria-pressed", String(this.paused));
    this.#say(this.state);
    this.dirty = true;
  }

  #say(state) {
    this.state = state;
    const shown = this.paused ? "paused" : state;
    // What is still shown is from then.
    const text = shown === "reconnecting" && this.told ? `reconnecting, as of ${clock(this.told)}` : shown;
    if (this.sign.textContent !== text) this.sign.textContent = text;
    this.sign.dataset.state = shown;
  }

  #tick() {
    if (!this.dirty || this.paused || document.hidden) return;
    this.dirty = false;
    // What counts seconds asks to be painted again.
    if (this.paint()) this.dirty = true;
  }
}

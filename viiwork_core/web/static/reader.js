// Reader: the events of a streamed answer. It knows whether the stream said that it is whole.

const LONGEST = 1 << 20;

export class Reader {
  done = false;
  #reader;
  #text = "";

  constructor(body) {
    this.#reader = body.pipeThrough(new TextDecoderStream()).getReader();
  }

  /** The data of each event, as JSON; comments and other lines are passed over. */
  async *events() {
    for (let part = await this.#reader.read(); !part.done; part = await this.#reader.read()) {
      this.#text += part.value;
      if (this.#text.length > LONGEST) throw new Error("a line without an end");
      const lines = this.#text.split(/\r?\n/);
      this.#text = lines.pop();
      for (const line of lines) {
        if (!line.startsWith("data:")) continue;
        const data = line.slice(5).trim();
        if (data === "[DONE]") this.done = true;
        else yield JSON.parse(data);
      }
    }
  }
}

// openai-node, which does what it is told line by line: {"do": NAME, ...} in, {"ok": VALUE} or {"error": {...}} out.
import { createRequire } from "node:module";
import { createInterface } from "node:readline";

// Where `make` has installed it, which is not beside this file.
const OpenAI = createRequire(process.env.NODE_CLIENTS + "/")("openai");
const HELLO = [{ role: "user", content: "What is new in town?" }];

const client = (base, maxRetries = 0) => new OpenAI({ baseURL: `${base}/v1`, apiKey: "any", maxRetries });
const body = (more) => ({ messages: HELLO, temperature: 0, max_tokens: 24, ...more });

const things = {
  async models({ base }) {
    const names = [];
    for await (const model of client(base).models.list()) names.push(model.id);
    return names;
  },

  async plain({ base, maxRetries, ...more }) {
    const { choices, usage } = await client(base, maxRetries).chat.completions.create(body(more));
    const calls = (choices[0].message.tool_calls ?? []).map((one) => [one.function.name, one.function.arguments]);
    return { text: choices[0].message.content, calls, completion_tokens: usage.completion_tokens };
  },

  // The pieces of a streamed answer; after `leave` of them it is aborted.
  async stream({ base, leave, ...more }) {
    const stream = await client(base).chat.completions.create(body({ stream: true, ...more }));
    const pieces = [];
    for await (const chunk of stream) {
      pieces.push(chunk.choices[0]?.delta.content ?? "");
      if (pieces.length === leave) stream.controller.abort();
    }
    return pieces;
  },

  // A streamed answer as the client's own helper puts it together.
  async gathered({ base, ...more }) {
    const { choices } = await client(base).chat.completions.stream(body(more)).finalChatCompletion();
    return (choices[0].message.tool_calls ?? []).map((one) => [one.function.name, one.function.arguments]);
  },
};

for await (const line of createInterface({ input: process.stdin })) {
  const { do: name, ...given } = JSON.parse(line);
  let answer;
  try {
    answer = { ok: await things[name](given) };
  } catch (error) {
    answer = { error: { name: error.constructor.name, status: error.status ?? null, message: error.message } };
  }
  console.log(JSON.stringify(answer));
}

"""A vLLM without a model: `vllm serve` as far as a node can tell, made of the recorded replies.

It generates one word a step. FAKE_VLLM_STEP_S in its environment says how long a step takes. A message with the words
"die now" kills its engine: the stream ends as vLLM ends it, and /health is 503 from then on.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web

RECORDINGS = Path(__file__).parent / "recordings"
WORDS = ("the", "river", "keeps", "a", "slow", "boat", "near", "the", "stone", "bridge")
BLOCK = 16
"""Tokens that the prefix cache keeps together."""


class EngineDeadError(Exception):
    """As vLLM calls it."""


def recorded(name: str) -> str:
    return (RECORDINGS / name).read_text()


def events(name: str) -> list[Any]:
    """The recorded stream's chunks, without its end."""
    lines = [line.removeprefix("data: ") for line in recorded(name).splitlines() if line]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def event(data: object) -> bytes:
    return f"data: {json.dumps(data)}\n\n".encode()


class Model:
    """The engine: batches of requests, a prefix cache, and gauges that are set at the end of a step."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.name: str = arguments.served_model_name
        self.step_s = float(os.environ.get("FAKE_VLLM_STEP_S", "0.005"))
        self.places = asyncio.Semaphore(arguments.max_num_seqs)
        self.running = self.waiting = self.steps = 0
        self.told = (0, 0)
        self.cached: set[int] = set()
        self.dead = False

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """A place in the batch."""
        self.waiting += 1
        try:
            await self.places.acquire()
        finally:
            self.waiting -= 1
        self.running += 1
        try:
            yield
        finally:
            # A request that was cancelled leaves without a step, and the gauges do not hear of it.
            self.running -= 1
            self.places.release()

    def step(self, leaving: int = 0) -> None:
        self.steps += 1
        self.told = (self.running - leaving, self.waiting)

    async def words(self, prompt: Sequence[str], number: int) -> AsyncIterator[str]:
        for index in range(number):
            await asyncio.sleep(self.step_s)
            if self.dead or "die now" in " ".join(prompt):
                self.dead = True
                raise EngineDeadError
            self.step(leaving=int(index == number - 1))
            yield WORDS[index % len(WORDS)]

    def read(self, prompt: Sequence[str]) -> int:
        """How many tokens of the prompt were cached; from now on all of its whole blocks are."""
        ends = range(BLOCK, len(prompt), BLOCK)
        hashes = [hash(tuple(prompt[:end])) for end in ends]
        hits = next((n for n, one in enumerate(hashes) if one not in self.cached), len(hashes))
        self.cached.update(hashes)
        return hits * BLOCK


class Server:
    """The HTTP interface."""

    def __init__(self, model: Model) -> None:
        self.model = model

    async def health(self, _: web.Request) -> web.Response:
        return web.Response(status=503 if self.model.dead else 200)

    async def version(self, _: web.Request) -> web.Response:
        return web.json_response(text=recorded("version.json"))

    async def models(self, _: web.Request) -> web.Response:
        listed = json.loads(recorded("models.json"))
        listed["data"][0].update(id=self.model.name, max_model_len=self.model.arguments.max_model_len)
        return web.json_response(listed)

    async def metrics(self, _: web.Request) -> web.Response:
        running, waiting = self.model.told
        text = recorded("metrics.txt").replace('"tiny"', json.dumps(self.model.name))
        figures = {"num_requests_running": running, "num_requests_waiting": waiting}
        for name, value in {**figures, "iteration_tokens_total_count": self.model.steps}.items():
            text = re.sub(rf"^(vllm:{name}{{.*}}) .*$", rf"\g<1> {float(value)}", text, flags=re.MULTILINE)
        return web.Response(text=text)

    async def chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        prompt = " ".join(message["content"] for message in body["messages"]).split()
        number = body.get("max_tokens") or body.get("max_completion_tokens") or 16
        if body.get("model", self.model.name) != self.model.name:
            return web.json_response(text=recorded("error_model.json").replace("other", body["model"]), status=404)
        if len(prompt) + number > self.model.arguments.max_model_len:
            return web.json_response(text=recorded("error_context.json"), status=400)
        if self.model.dead:
            return web.json_response(events("stream_error.txt")[1], status=500)
        if body.get("stream"):
            return await self._streamed(request, body, prompt, number)
        return await self._plain(prompt, number)

    def _usage(self, usage: dict[str, Any], prompt: int, cached: int, written: int) -> dict[str, Any]:
        details = {"cached_tokens": cached} if self.model.arguments.enable_prompt_tokens_details else None
        figures = {"prompt_tokens": prompt, "completion_tokens": written, "total_tokens": prompt + written}
        return {**usage, **figures, "prompt_tokens_details": details}

    async def _plain(self, prompt: Sequence[str], number: int) -> web.Response:
        answer = json.loads(recorded("chat.json"))
        async with self.model.place():
            cached = self.model.read(prompt)
            text = " ".join([word async for word in self.model.words(prompt, number)])
        answer["model"] = self.model.name
        answer["choices"][0].update(finish_reason="length")
        answer["choices"][0]["message"].update(content=text)
        answer["usage"] = self._usage(answer["usage"], len(prompt), cached, number)
        return web.json_response(answer)

    async def _streamed(
        self, request: web.Request, body: dict[str, Any], prompt: Sequence[str], number: int
    ) -> web.StreamResponse:
        opening, chunk, last, usage = events("stream.txt")
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        for one in (opening, chunk, last, usage):
            one["model"] = self.model.name
        try:
            async with self.model.place():
                cached = self.model.read(prompt)
                await response.write(event(opening))
                async for word in self.model.words(prompt, number):
                    chunk["choices"][0]["delta"]["content"] = f"{word} "
                    await response.write(event(chunk))
            last["choices"][0].update(delta={"content": ""}, finish_reason="length")
            await response.write(event(last))
            usage["usage"] = self._usage(usage["usage"], len(prompt), cached, number)
            if (body.get("stream_options") or {}).get("include_usage"):
                await response.write(event(usage))
        except EngineDeadError:
            await response.write(event(events("stream_error.txt")[1]))
        await response.write(b"data: [DONE]\n\n")
        return response


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The flags that the plugin uses, and as vLLM does: others are errors, and _ is - in a flag."""
    parser = argparse.ArgumentParser(prog="vllm")
    parser.add_argument("command", choices=["serve"])
    parser.add_argument("model_tag")
    for flag in ("--served-model-name", "--host", "--dtype", "--uvicorn-log-level"):
        parser.add_argument(flag)
    for flag in ("--port", "--max-model-len", "--max-num-seqs", "--tensor-parallel-size"):
        parser.add_argument(flag, type=int)
    parser.add_argument("--gpu-memory-utilization", type=float)
    for flag in ("--enable-prefix-caching", "--enable-prompt-tokens-details"):
        parser.add_argument(flag, action=argparse.BooleanOptionalAction)
    dashed = (re.sub(r"^--[^=]+", lambda found: found[0].replace("_", "-"), word) for word in argv)
    return parser.parse_args([*dashed])


async def serve(arguments: argparse.Namespace) -> None:
    server = Server(Model(arguments))
    app = web.Application()
    for path, answer in (
        ("/health", server.health),
        ("/version", server.version),
        ("/v1/models", server.models),
        ("/metrics", server.metrics),
    ):
        app.router.add_get(path, answer)
    app.router.add_post("/v1/chat/completions", server.chat)
    # A client that leaves cancels its request, as in vLLM.
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, arguments.host, arguments.port).start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(parse(sys.argv[1:])))

"""A fake engine: a process in llama-server's shapes that starts at once and fails on request.

    python -m viiwork_core.testing.fake_engine --port N [--slots 2] [--load-seconds 3] ...

It answers /health, /slots, /v1/models, /v1/chat/completions, and /slots/N?action=save|restore|erase as llama-server
does. Its text depends on every token before it (see fake_model). What it saw and did is told at GET /fake/requests
(the last 1000 requests with headers and body) and GET /fake/state.

Standard library only: a test starts many of these.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import signal
import sys
import time
import zlib
from collections import deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from viiwork_core.testing import fake_model
from viiwork_core.testing.fake_http import Answer, Request, serve
from viiwork_core.testing.fake_model import Slot
from viiwork_core.testing.fake_reply import Reply, Task
from viiwork_core.testing.fake_slots import Refusal, SlotTable, invalid, json_object

SESSION_HEADER = "X-Fake-Session"
CRASH_STATUS = 70
DEFAULT_TOKENS = 32
LOG_LIMIT = 1000


@dataclass
class Counts:
    """How requests for text ended."""

    active: int = 0
    completed: int = 0
    cancelled: int = 0
    """The client left before the end."""

    refused: int = 0
    cut: int = 0


class FakeServer:
    """The engine behind the routes."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given = given
        self.table = SlotTable(given.slots, context=given.context, folder=given.slot_save_path, wedged=given.wedge_slot)
        self.counts = Counts()
        self.seen: deque[dict[str, Any]] = deque(maxlen=LOG_LIMIT)
        self.seed = zlib.crc32(given.model.read_bytes()) if given.model else 0
        self.name = given.alias or str(given.model or "fake")
        self._ready_at = time.monotonic() + given.load_seconds
        self._statuses = itertools.chain(given.answer_status[:-1], itertools.repeat(given.answer_status[-1]))
        self._tasks = itertools.count(1)

    async def handle(self, request: Request, answer: Answer) -> None:
        """Answer one request."""
        try:
            if request.path.startswith("/fake/"):
                await answer.send_json(self._tell(request.path))
            else:
                await self._answer(request, answer)
        except Refusal as refusal:
            await answer.send_json(refusal.body, refusal.status)

    async def _answer(self, request: Request, answer: Answer) -> None:
        text = request.body.decode("utf-8", "replace")
        self.seen.append(
            {"method": request.method, "path": request.path, "headers": request.headers, "body": _parsed(text)}
        )
        if time.monotonic() < self._ready_at:
            raise Refusal(503, "unavailable_error", "Loading model")
        match request.method, request.path.strip("/").split("/"):
            case "GET", ["health"]:
                await answer.send_json({"status": "ok"})
            case "GET", ["slots"]:
                await answer.send_json(self.table.describe())
            case "GET", ["v1", "models"]:
                await answer.send_json(self._models())
            case "POST", ["v1", "chat", "completions"]:
                await self._chat(request, answer)
            case "POST", ["slots", number]:
                await answer.send_json(self.table.act(number, request))
            case _:
                raise Refusal(404, "not_found_error", "File Not Found")

    def _tell(self, path: str) -> Any:
        if path == "/fake/requests":
            return list(self.seen)
        if path == "/fake/state":
            slots = [
                {"id": s.id, "busy": s.busy, "tokens": len(s.rows), "session": s.session} for s in self.table.slots
            ]
            return {"pid": os.getpid(), **vars(self.counts), "slots": slots}
        raise Refusal(404, "not_found_error", "File Not Found")

    async def _chat(self, request: Request, answer: Answer) -> None:
        status = next(self._statuses)
        if status != 200:
            self.counts.refused += 1
            raise Refusal(status, "server_error" if status >= 500 else "rate_limit", f"told to answer {status}")
        task = self._checked(request)
        self.counts.active += 1
        try:
            await self._run(task, answer)
        except (asyncio.CancelledError, ConnectionError):
            self.counts.cancelled += 1
            raise
        finally:
            self.counts.active -= 1

    def _checked(self, request: Request) -> Task:
        body = json_object(request.body)
        if self.given.only_model and body.get("model") != self.name:
            raise Refusal(404, "not_found_error", f"model {body.get('model')!r} is not {self.name!r}")
        if "messages" not in body:
            raise invalid("'messages' is required")
        if not isinstance(body["messages"], list):
            raise invalid("Expected 'messages' to be an array")
        try:
            ids = fake_model.prompt_ids(fake_model.render(body["messages"]))
        except ValueError as error:
            raise invalid(str(error)) from error
        if len(ids) >= self.given.context:
            message = f"request ({len(ids)} tokens) exceeds the available context size ({self.given.context} tokens)"
            more = {"n_prompt_tokens": len(ids), "n_ctx": self.given.context}
            raise Refusal(400, "exceed_context_size_error", message, **more)
        wanted = body.get("max_completion_tokens", body.get("max_tokens"))
        limit = DEFAULT_TOKENS if wanted is None or wanted < 0 else wanted
        pin = body.get("id_slot", -1)
        return Task(
            ids=tuple(ids),
            limit=min(limit, self.given.context - len(ids)),
            finish="stop" if wanted is None else "length",
            stream=body.get("stream") is True,
            include_usage=bool((body.get("stream_options") or {}).get("include_usage")),
            pin=pin % len(self.table.slots) if pin >= 0 else None,  # out of range wraps around, as in llama-server
            session=request.headers.get(SESSION_HEADER.lower()),
        )

    async def _run(self, task: Task, answer: Answer) -> None:
        async with self.table.claimed(task) as slot:
            began = time.monotonic()
            fake_model.prefill(slot, task.ids, self.seed)
            slot.session, slot.task, slot.decoded, slot.remaining = task.session, next(self._tasks), 0, task.limit
            await asyncio.sleep(self.given.first_byte_seconds)
            reply = Reply(self.name, slot, task, began)
            if task.stream:
                complete = await self._stream(reply, answer)
            else:
                text = "".join([word async for word in self._words(slot, task.limit)])
                complete = True
        # The slot is free again before the client can know that its answer is complete.
        if not complete:
            self.counts.cut += 1
            await answer.cut()
            return
        self.counts.completed += 1
        await (self._finish_stream(reply, answer) if task.stream else answer.send_json(reply.whole(text)))

    async def _stream(self, reply: Reply, answer: Answer) -> bool:
        """Send the events up to the last word; False when --cut-after says to break off."""
        cut_after: int | None = self.given.cut_after
        await answer.start_stream()
        await answer.send_event(reply.chunk({"role": "assistant", "content": None}))
        sent = 1
        async for word in self._words(reply.slot, reply.task.limit):
            if sent == cut_after:
                return False
            await answer.send_event(reply.chunk({"content": word}))
            sent += 1
        return sent != cut_after

    async def _finish_stream(self, reply: Reply, answer: Answer) -> None:
        last = {} if reply.task.include_usage else {"timings": reply.timings}
        await answer.send_event(reply.chunk({}, reply.task.finish, **last))
        if reply.task.include_usage:
            await answer.send_event(reply.usage_chunk())
        await answer.send_event("[DONE]")
        await answer.end_stream()

    async def _words(self, slot: Slot, limit: int) -> AsyncIterator[str]:
        for written in range(limit):
            await asyncio.sleep(self.given.token_seconds)
            word = fake_model.next_token(slot)
            if written < limit - 1:  # the last word is not read again, so the cache ends one token before it
                fake_model.append(slot, fake_model.token_id(word), self.seed)
            slot.decoded, slot.remaining = written + 1, limit - written - 1
            yield word

    def _models(self) -> dict[str, Any]:
        model = {
            "id": self.name,
            "aliases": [self.name],
            "tags": [],
            "object": "model",
            "created": int(time.time()),
            "owned_by": "llamacpp",
            "meta": {"n_ctx": self.given.context},
        }
        return {"models": [{"name": self.name, "model": self.name}], "object": "list", "data": [model]}


def _parsed(text: str) -> Any:
    try:
        return json.loads(text) if text else None
    except ValueError:
        return text


def options(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m viiwork_core.testing.fake_engine", description=__doc__)
    add = parser.add_argument
    add("--host", default="127.0.0.1")
    add("--port", type=int, required=True)
    add("--model", type=Path, help="any file: another content is another model, and writes other text")
    add("--alias", help="name in /v1/models and in answers")
    add("--slots", type=int, default=2)
    add("--context", type=int, default=8192, help="tokens per slot")
    add("--slot-save-path", type=Path, help="folder of the cache files")
    add("--load-seconds", type=float, default=0.0, help="answer 503 that long after the start")
    add("--first-byte-seconds", type=float, default=0.0, help="time to read a prompt; nothing is sent before")
    add("--token-seconds", type=float, default=0.0, help="time to write a token")
    add("--http10", action="store_true", help="close after each answer; a stream has no other end than [DONE]")
    add("--only-model", action="store_true", help="answer 404 to any other name than --alias")
    add("--answer-status", type=int, nargs="+", default=[200], help="of the first, second... chat; the last one stays")
    add("--cut-after", type=int, help="break each stream off after so many events")
    add("--wedge-slot", type=int, help="a request on this slot never gets an answer, and the slot stays busy")
    add("--crash-after", type=float, help="exit with status 70 so many seconds after the start")
    add("--exit-at-start", action="store_true", help="say why and exit with status 1")
    add("--ignore-sigterm", action="store_true")
    return parser.parse_args(argv)


async def run(given: argparse.Namespace) -> None:
    """Serve until SIGTERM or SIGINT."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, (lambda: None) if given.ignore_sigterm else ended.set)
    loop.add_signal_handler(signal.SIGINT, ended.set)
    if given.crash_after is not None:
        loop.call_later(given.crash_after, os._exit, CRASH_STATUS)
    await serve(FakeServer(given).handle, given.host, given.port, old=given.http10)
    await ended.wait()
    os._exit(0)  # at once, whatever still streams


def main(argv: Sequence[str] | None = None) -> None:
    given = options(argv)
    if given.exit_at_start:
        sys.exit("fake engine: told to exit at start")
    asyncio.run(run(given))


if __name__ == "__main__":
    main()

"""An engine that does byte for byte what each request tells it to: `{"script": [[STEP, ...], ...]}` in the body.

    raw BASE64     write these bytes, whatever they are
    stream         start a chunked answer of events
    chunk BASE64   write one chunk
    end            write the last chunk
    json STATUS TEXT   a whole JSON answer
    big SIZE       a whole answer of so many bytes
    wait SECONDS
    gate NAME      wait for POST /open/NAME; a gate stays open
    hold           wait for the client to leave
    cut            close the connection

Without a script the answer is a small completion. GET /seen tells what was asked and when a client left; POST /load
sets what /load answers instead of the truth; POST /refuse [STATUS, ...] makes it answer so to the next requests, POST
/mute N say nothing to the next N; GET /wait/NAME waits for a gate, GET /probes tells how often it was asked whether it
is ready, GET /reports how often for its load. Standard library only; run as `python scripted_engine.py --port N`.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import itertools
import json
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from typing import Any

PLAIN = json.dumps(
    {
        "object": "chat.completion",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "fine"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 5, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 2}},
    }
)
GONE = (ConnectionError, asyncio.IncompleteReadError)


class Scripted:
    """What the engine has seen and is doing."""

    def __init__(self, slots: int, closes: bool) -> None:
        self.slots, self.closes = slots, closes
        self.seen: list[dict[str, Any]] = []
        self.working: dict[int, int | None] = {}
        """Request number -> the slot it was pinned to."""

        self.gates: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self.told: Any = None
        self.most = 0
        """The most requests at once."""
        self.refusals: list[int] = []
        self.mute = 0
        """So many of the next requests are told nothing."""
        self.probes = 0
        self.reports = 0
        self._numbers = itertools.count()

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ahead = b""
        with suppress(*GONE):
            while (head := ahead + await reader.readuntil(b"\r\n\r\n")) != b"":
                line, headers = _parsed(head)
                body = await _body(reader, headers)
                ahead = await self._answer(line, headers, body, reader, writer)
                if self.closes:
                    break
        writer.close()

    async def _answer(
        self,
        line: str,
        headers: list[tuple[str, str]],
        body: bytes,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> bytes:
        method, path, _ = line.split(" ", 2)
        if path.startswith("/v1/"):
            return await self._work(path, headers, body, reader, writer)
        if method == "POST" and path.startswith("/open/"):
            self.gates[path.removeprefix("/open/")].set()
        if method == "POST" and path == "/load":
            self.told = json.loads(body)
        if method == "POST" and path == "/refuse":
            self.refusals = json.loads(body)
        if method == "POST" and path == "/mute":
            self.mute = json.loads(body)
        if path.startswith("/wait/"):
            await self.gates[path.removeprefix("/wait/")].wait()
        writer.write(_json(200, json.dumps(self._tell(path))))
        await writer.drain()
        return b""

    def _tell(self, path: str) -> Any:
        match path:
            case "/seen":
                return self.seen
            case "/most":
                return self.most
            case "/probes":
                return self.probes
            case "/reports":
                return self.reports
            case "/load":
                self.reports += 1
                pinned = set(self.working.values())
                each = [{"id": number, "busy": number in pinned} for number in range(self.slots)]
                return self.told or {"slots": self.slots, "busy": len(self.working), "each": each}
            case _:
                self.probes += path == "/ready"
                return {"ready": True}

    async def _work(
        self,
        path: str,
        headers: list[tuple[str, str]],
        body: bytes,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> bytes:
        number = next(self._numbers)
        note: dict[str, Any] = {
            "path": path,
            "headers": headers,
            "body": base64.b64encode(body).decode(),
            "at": time.monotonic(),
            "from": writer.get_extra_info("peername")[1],
            "left": None,
            "done": False,
        }
        self.seen.append(note)
        try:
            asked = json.loads(body.decode("utf-8", "replace"))
        except ValueError:
            asked = {}
        script = asked.get("script", [["json", 200, PLAIN]])
        if self.refusals:
            script = [["json", self.refusals.pop(0), '{"error":{"message":"told to refuse"}}']]
        if self.mute:
            self.mute, script = self.mute - 1, [["hold"]]
        self.working[number] = asked.get("id_slot")
        self.most = max(self.most, len(self.working))
        work = asyncio.ensure_future(self._play(script, writer, lambda: self.working.pop(number, None)))
        watch = asyncio.ensure_future(reader.read(1))
        try:
            await asyncio.wait({work, watch}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done() and (watch.exception() or not watch.result()):
                note["left"] = time.monotonic()
                work.cancel()
            await asyncio.wait({work})
            note["done"] = not work.cancelled() and work.exception() is None
            watch.cancel()
            await asyncio.wait({watch})
            if not note["done"]:
                raise ConnectionResetError
        finally:
            self.working.pop(number, None)
        return b"" if watch.cancelled() or watch.exception() else watch.result()

    async def _play(  # noqa: C901  # one branch a step
        self, script: list[list[Any]], writer: asyncio.StreamWriter, ending: Callable[[], object]
    ) -> None:
        for position, (step, *given) in enumerate(script, start=1):
            if position == len(script) and step in ("end", "json", "big"):
                ending()  # the slot is free before the client can know that its answer is complete
            match step, given:
                case "raw", [text]:
                    writer.write(base64.b64decode(text))
                case "stream", []:
                    kind = b"content-type: text/event-stream\r\ntransfer-encoding: chunked"
                    writer.write(b"HTTP/1.1 200 OK\r\n" + kind + b"\r\n\r\n")
                case "chunk", [text]:
                    data = base64.b64decode(text)
                    writer.write(b"%x\r\n%b\r\n" % (len(data), data))
                case "end", []:
                    writer.write(b"0\r\n\r\n")
                case "json", [status, text]:
                    writer.write(_json(status, text))
                case "big", [size]:
                    writer.write(_json(200, "x" * size))
                case "wait", [seconds]:
                    await asyncio.sleep(seconds)
                case "gate", [name]:
                    await self.gates[name].wait()
                case "hold", []:
                    await asyncio.Event().wait()
                case "cut", []:
                    await writer.drain()
                    writer.close()
                    raise ConnectionAbortedError
            await writer.drain()


def _json(status: int, text: str) -> bytes:
    body = text.encode()
    return b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (
        status,
        len(body),
        body,
    )


def _parsed(head: bytes) -> tuple[str, list[tuple[str, str]]]:
    line, *rest = head.decode("latin-1").rstrip("\r\n").split("\r\n")
    return line, [(name.lower(), value.strip()) for name, value in (one.split(":", 1) for one in rest)]


async def _body(reader: asyncio.StreamReader, headers: list[tuple[str, str]]) -> bytes:
    given = dict(headers)
    if "chunked" not in given.get("transfer-encoding", ""):
        return await reader.readexactly(int(given.get("content-length", "0")))
    body = b""
    while size := int((await reader.readline()).split(b";")[0], 16):
        body += await reader.readexactly(size)
        await reader.readline()
    await reader.readline()
    return body


async def run(port: int, slots: int, closes: bool) -> None:
    engine = Scripted(slots, closes)
    async with await asyncio.start_server(engine.connected, "127.0.0.1", port, limit=1 << 20) as server:
        await server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--slots", type=int, default=2)
    parser.add_argument("--closes", action="store_true", help="one request a connection, as an HTTP/1.0 server")
    given = parser.parse_args()
    with suppress(KeyboardInterrupt):
        asyncio.run(run(given.port, given.slots, given.closes))

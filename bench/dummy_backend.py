"""An engine that does nothing: it gives every request the same answer, at once.

    python bench/dummy_backend.py PORT

GET /v1/models names one model, `dummy`. A POST is answered with one JSON object or, if its body has `"stream": true`,
with 64 events in one burst. Only what the programs under test send is understood.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import cast

import uvloop

EVENTS = 64
"""Events of a streamed answer, without the closing [DONE]."""

_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: %s\r\n"
_STREAMED = (b'"stream": true', b'"stream":true')


def _plain(body: object) -> bytes:
    text = json.dumps(body).encode()
    return _HEAD % b"application/json" + b"content-length: %d\r\n\r\n" % len(text) + text


def _event(number: int) -> bytes:
    delta = {"index": 0, "delta": {"content": f"word{number} "}, "finish_reason": None}
    chunk = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "dummy", "choices": [delta]}
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


def _stream() -> bytes:
    events = [*map(_event, range(EVENTS)), b"data: [DONE]\n\n"]
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(event), event) for event in events)
    return _HEAD % b"text/event-stream" + b"transfer-encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"


MODELS = _plain({"object": "list", "data": [{"id": "dummy", "object": "model", "created": 1, "owned_by": "bench"}]})
ANSWER = _plain(
    {
        "id": "x",
        "object": "chat.completion",
        "created": 1,
        "model": "dummy",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "hello"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 5, "completion_tokens": 1, "total_tokens": 6},
    }
)
STREAM = _stream()


def _length(head: bytes) -> int:
    _, found, rest = head.lower().partition(b"\r\ncontent-length:")
    return int(rest.partition(b"\r\n")[0]) if found else 0


class Connection(asyncio.Protocol):
    """One client's connection."""

    def __init__(self) -> None:
        self._came = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not derive from asyncio's.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._came += data
        while (head := self._came.find(b"\r\n\r\n") + 4) > 3:
            end = head + _length(self._came[:head])
            if len(self._came) < end:
                return
            self._answer(self._came[:head], self._came[head:end])
            self._came = self._came[end:]

    def _answer(self, head: bytes, body: bytes) -> None:
        if head.startswith(b"GET"):
            self._transport.write(MODELS)
        else:
            self._transport.write(STREAM if any(mark in body for mark in _STREAMED) else ANSWER)


async def _serve(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Connection, "127.0.0.1", port, backlog=4096)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_serve(int(sys.argv[1])))

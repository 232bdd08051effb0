"""The load: connections that ask again as soon as they have their answer, and look at every answer.

Written on bare asyncio protocols, so that it costs a fraction of what any program under test does.
"""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass
from typing import cast

PATH = "/v1/chat/completions"
PATIENCE_S = 20.0
"""How long a program under test may be silent."""


class WrongAnswer(Exception):  # named for what happened
    """A program under test failed, so its figures would mean nothing."""


@dataclass(frozen=True)
class Ask:
    """What to ask whom, and what a right answer has."""

    port: int
    request: bytes
    mark: bytes
    """Stands in the body of a right answer..."""

    marks: int
    """...so many times."""


def ask(port: int, model: str, *, events: int = 0) -> Ask:
    """A chat request; `events`: streamed, with so many of them before [DONE]. 0: one JSON object."""
    messages = [{"role": "user", "content": "Say hello."}]
    body = json.dumps({"model": model, "messages": messages, "stream": events > 0}).encode()
    fields = {"host": f"127.0.0.1:{port}", "content-type": "application/json", "content-length": len(body)}
    lines = [f"POST {PATH} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items()), "", ""]
    mark, marks = (b"data: ", events + 1) if events else (b'"finish_reason"', 1)
    return Ask(port, "\r\n".join(lines).encode() + body, mark, marks)


class Load:
    """One measurement: connections that ask until the time is up or `most` answers have come, and then wait for theirs.

    What is under way at the end counts, and so does its time: a program that is slow would lose most by another rule.
    """

    def __init__(self, what: Ask, connections: int, most: int) -> None:
        self.ask = what
        self.times: list[float] = []
        """Seconds that each answer took, whole."""

        self._connections = connections
        self._most = most
        self._stopped = False
        self._open = 0
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._opening: set[asyncio.Task[None]] = set()

    async def run(self, seconds: float) -> None:
        """Raises WrongAnswer, also when there is none at all."""
        for _ in range(self._connections):
            self._connect()
        timer = asyncio.get_running_loop().call_later(seconds, self._stop)
        try:
            async with asyncio.timeout(seconds + PATIENCE_S):
                await self._over
        except TimeoutError:
            raise WrongAnswer(f"port {self.ask.port} did not answer within {PATIENCE_S:g} s") from None
        finally:
            timer.cancel()

    def _connect(self) -> None:
        self._open += 1
        opening = asyncio.get_running_loop().create_task(self._connected())
        self._opening.add(opening)
        opening.add_done_callback(self._opening.discard)

    async def _connected(self) -> None:
        try:
            await asyncio.get_running_loop().create_connection(lambda: Caller(self), "127.0.0.1", self.ask.port)
        except OSError as error:
            self.fail(f"port {self.ask.port} takes no connection: {error}")

    def _stop(self) -> None:
        self._stopped = True

    def answered(self, took: float) -> bool:
        """An answer has come; whether to ask again."""
        self.times.append(took)
        self._stopped = self._stopped or len(self.times) >= self._most
        return not self._stopped

    def fail(self, reason: str) -> None:
        """This run is worth nothing."""
        self._stopped = True
        if not self._over.done():
            self._over.set_exception(WrongAnswer(reason))

    def lost(self, *, within: bool) -> None:
        """A connection has ended. A server may do so between two answers, never within one."""
        self._open -= 1
        if within:
            self.fail(f"port {self.ask.port} broke a connection within an answer")
        elif not self._stopped:
            self._connect()
        elif not self._open and not self._over.done():
            self._over.set_result(None)


class Caller(asyncio.Protocol):
    """One connection."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._came = b""
        self._body = 0
        """Where the body begins; 0: the head is not complete yet."""

        self._end: int | None = None
        """Where the answer ends; None: with its last chunk."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not derive from asyncio's.
        self._transport = cast(asyncio.Transport, transport)
        self._send()

    def _send(self) -> None:
        self._came, self._body = b"", 0
        self._sent_at = time.perf_counter()
        self._transport.write(self._load.ask.request)

    def data_received(self, data: bytes) -> None:
        self._came += data
        if not self._body and (end := self._came.find(b"\r\n\r\n")) > 0:
            self._body = end + 4
            self._end = _length(self._came[:end])
        if self._body and self._complete():
            self._answered(time.perf_counter() - self._sent_at)

    def _complete(self) -> bool:
        if self._end is not None:
            return len(self._came) >= self._body + self._end
        # Nothing comes after an answer before the next request, so its last chunk is the end of what has come.
        return self._came.endswith(b"\r\n0\r\n\r\n")

    def _answered(self, took: float) -> None:
        what = self._load.ask
        if not self._came.startswith(b"HTTP/1.1 200 ") or self._came.count(what.mark, self._body) != what.marks:
            self._load.fail(f"port {what.port} did not give the backend's answer: {self._came[:400]!r}")
        if self._load.answered(took):
            self._send()
        else:
            self._came = b""
            self._transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        del error
        self._load.lost(within=bool(self._came))


def _length(head: bytes) -> int | None:
    _, found, rest = head.lower().partition(b"\r\ncontent-length:")
    return int(rest.partition(b"\r\n")[0]) if found else None


@dataclass(frozen=True)
class Pace:
    """Right answers, and the seconds in which they came."""

    answers: int
    seconds: float

    @property
    def per_s(self) -> float:
        return self.answers / self.seconds


async def pace(what: Ask, *, connections: int, seconds: float, most: int) -> Pace:
    """How fast right answers come, over `seconds` or `most` answers, whichever is less. Raises WrongAnswer."""
    load = Load(what, connections, most)
    began = time.perf_counter()
    await load.run(seconds)
    return Pace(len(load.times), time.perf_counter() - began)


async def durations(what: Ask, count: int) -> list[float]:
    """Seconds that each of `count` answers took, one after the other on one connection. Raises WrongAnswer."""
    load = Load(what, 1, count)
    await load.run(PATIENCE_S)
    return load.times

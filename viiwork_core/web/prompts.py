"""The prompt history of a node: what is kept of its clients' requests, and who may read it."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Mapping
from typing import Any, Final, Literal

from viiwork_core.clock import Clock
from viiwork_core.errors import Forbidden, NotFound
from viiwork_core.observe.prompts import Prompt, PromptHistory
from viiwork_core.proxy.exchange import Exchange
from viiwork_core.proxy.headers import first
from viiwork_core.proxy.request import Scope, Send
from viiwork_core.security.operator_token import HEADER as OPERATOR
from viiwork_core.web.access import Rules
from viiwork_core.web.transcript import Answer, said, transcript

PATH: Final = "/v1/prompts"

MOST_OF_ANSWER: Final = 2 << 20
"""Bytes of an answer that are held while it runs; a stream of events takes some 200 for a token."""

AT_ONCE: Final = 64 * 1024
"""Bytes of a request and its answer that are read on the data loop; more of them in a thread."""


class Gathering:
    """Sends on what a client is sent, and holds the beginning of the answer."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._chunks: list[bytes] = []
        self._room = MOST_OF_ANSWER

    async def __call__(self, message: Any) -> None:
        if self._room > 0 and (body := message.get("body")):
            self._chunks.append(body[: self._room])
            self._room -= len(body)
        await self._send(message)

    def held(self) -> bytes:
        """What has been sent."""
        return b"".join(self._chunks)


class Prompts:
    """Keeps them. On the data loop."""

    def __init__(self, mode: Literal["sizes", "full"], history: PromptHistory, clock: Clock) -> None:
        self.mode = mode
        self._history = history
        self._clock = clock
        self._reading: set[asyncio.Task[None]] = set()

    def gathering(self, send: Send) -> Send:
        """What an answer is to be sent with."""
        return Gathering(send) if self.mode == "full" else send

    def ended(self, exchange: Exchange, status: int, seconds: float) -> None:
        """A client's request is over, so many seconds after it came."""
        raw = exchange.request.body.raw
        answer = exchange.send.held() if isinstance(exchange.send, Gathering) else None
        known = self._known(exchange, status, seconds)
        if len(raw) + len(answer or b"") <= AT_ONCE:
            self._history.add(_read(known, raw, answer))
            return
        task = asyncio.get_running_loop().create_task(self._read(known, raw, answer))
        self._reading.add(task)
        task.add_done_callback(self._reading.discard)

    async def _read(self, known: Mapping[str, Any], raw: bytes, answer: bytes | None) -> None:
        self._history.add(await asyncio.to_thread(_read, known, raw, answer))

    def _known(self, exchange: Exchange, status: int, seconds: float) -> dict[str, Any]:
        request, usage = exchange.request, exchange.usage
        model, first_byte = request.query.model, exchange.first_byte_at
        return {
            "rid": request.id,
            "t": int(self._clock.wall() - seconds),
            "model": model if request.alias is None else f"{model} (alias {request.alias})",
            "status": status,
            "elapsed_ms": round(seconds * 1000),
            "prompt_tokens": usage.prompt,
            "cached_tokens": usage.cached,
            "output_tokens": usage.completion,
            "gen_ms": None if first_byte is None else round(max(0.0, self._clock.monotonic() - first_byte) * 1000),
        }

    def told(self) -> list[Prompt]:
        """The newest."""
        return self._history.newest()

    def one(self, rid: str) -> Prompt:
        """The whole of one. Raises NotFound."""
        found = self._history.find(rid)
        if found is None:
            what = f"nothing is kept of a request {rid[:128]}"
            remedy = "ask the node where it came in; activity.prompt_history bounds how many are kept"
            raise NotFound(what, remedy=remedy)
        return found


def _read(known: Mapping[str, Any], raw: bytes, answer: bytes | None) -> Prompt:
    """`answer`: its bytes; None: no text is kept, only sizes."""
    messages = said(raw)
    told = {**known, "messages": len(messages), "prompt_chars": sum(len(text) for _, text in messages)}
    if answer is not None:
        told.update(prompt=transcript(messages), output=Answer.of(answer).text())
    return Prompt(**told)


def check_reader(rules: Rules, scope: Scope) -> None:
    """Let only the operator read, on the node's own machine: with API keys whoever shows the token of the state folder,
    without them a request from loopback that is no other page's and came through no proxy that says so.

    Raises Forbidden.
    """
    headers = scope["headers"]
    token = first(headers, OPERATOR.lower().encode())
    if token and rules.operator and hmac.compare_digest(token.encode(), rules.operator.encode()):
        return
    remedy = "use `viiwork prompts` there, as the node's user"
    if rules.keys:
        raise Forbidden("with API keys only the operator may read what was asked and answered", remedy=remedy)
    if any(first(headers, name) for name in (b"forwarded", b"x-forwarded-for", b"x-real-ip", b"via")):
        raise Forbidden("what was asked and answered is not told through a proxy", remedy=remedy)
    rules.claims.from_here(scope, "only this machine may read what was asked and answered")


def may_read(rules: Rules, scope: Scope) -> bool:
    """The same as a question."""
    try:
        check_reader(rules, scope)
    except Forbidden:
        return False
    return True

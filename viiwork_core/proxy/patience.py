"""Patience: how long a place may stay silent before its request goes elsewhere.

A streamed request has a deadline for its first byte. Another one is silent for as long as it is generated, so there
only the place's own word counts that it does nothing for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Self

from viiwork_core.contracts.policy import Score
from viiwork_core.errors import BackendFailed
from viiwork_core.mesh.report import LONGEST_SILENCE, ModelReport
from viiwork_core.proxy.exchange import Exchange
from viiwork_core.proxy.interruption import Interruption
from viiwork_core.proxy.request import InferenceRequest
from viiwork_core.routing.candidates import score_of

SHORTEST = 30.0
"""Seconds, whatever the prompt."""

COLD_RATE = 100.0
"""Tokens a second that a cold prompt is taken to be read at where nothing is measured: half of what two Radeon VII do
with a large model."""

TIMES = 2.0
"""So many times the predicted silence are waited for."""

AGAIN = 1.0
"""Seconds after which a place that is silent is judged again, as often as its load is asked for."""

LOOK = 0.5
"""Seconds between two looks at whether the place is there at all."""

_SOON = 0.01
"""Seconds that a timer may be early."""

VERDICTS = 2
"""So many in a row against a place; one may be about an answer that is on its way."""


def patience_for(
    request: InferenceRequest, configured: float | None, score: Score | None = None, side_by_side: int = 1
) -> float:
    """Seconds of silence that a request may meet, `configured` or by the size of its prompt.

    `score`: as measured there. `side_by_side`: prompts that are read there at a time, each so much more slowly.
    """
    if configured is not None:
        return min(configured, LONGEST_SILENCE)
    tokens = request.query.prompt_tokens
    # None of it in a cache: what the engine was believed to hold may be gone.
    cold = tokens / COLD_RATE if score is None else side_by_side * score.first_token_ms(tokens) / 1000
    return min(max(SHORTEST, TIMES * cold), LONGEST_SILENCE)


def patience_there(request: InferenceRequest, about: ModelReport | None) -> float:
    """`patience_for` a request at another node, by what that reports of the model."""
    if about is None:
        return patience_for(request, None)
    side_by_side = max(1, about.slots // max(1, about.healthy_backends))
    return patience_for(request, about.first_byte_s, score_of(about), side_by_side)


def wore_out(exchange: Exchange, limit: float, now: float) -> bool:
    """Whether a place has been silent for longer than was predicted; it may be so for TIMES as long."""
    return exchange.silence(now) >= limit / TIMES


class Patience:
    """`with Patience(...)` around the asking of one place, which ends with BackendFailed when patience does."""

    __slots__ = (
        "_end",
        "_exchange",
        "_gone",
        "_idles",
        "_last",
        "_limit",
        "_timer",
        "_verdicts",
    )

    def __init__(
        self,
        exchange: Exchange,
        limit: float,
        idles: Callable[[], bool],
        *,
        last: float | None,
        gone: Callable[[], bool] | None = None,
    ) -> None:
        """From `limit` seconds on `idles` says whether the place does nothing. After `last` nobody asks any more;
        None: there is no such end. `gone`, asked from the beginning: whether there is no such place any more."""
        self._exchange = exchange
        self._limit = limit
        self._idles = idles
        self._last = last
        self._gone = gone
        self._verdicts = 0

    def __enter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._last = None if self._last is None else loop.time() + self._last
        self._timer = self._next(loop.time() + self._limit)
        # A scope of anyio's costs a twentieth of relaying a short answer.
        self._end = Interruption()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        if self._end.took(kind):
            gone = self._gone is not None and self._gone()
            raise BackendFailed("gone without a word" if gone else f"no word for {self._limit:g} s") from error

    def _next(self, limit_at: float) -> asyncio.TimerHandle:
        loop = asyncio.get_running_loop()
        if self._gone is None or loop.time() + LOOK >= limit_at:
            return loop.call_at(limit_at, self._judge)
        return loop.call_later(LOOK, self._look, limit_at)

    def _look(self, limit_at: float) -> None:
        if self._exchange.started:
            return
        if self._gone is not None and self._gone():
            self._end.come()
        else:
            self._timer = self._next(limit_at)

    def _judge(self) -> None:
        if self._exchange.started:
            return
        self._verdicts = self._verdicts + 1 if self._idles() else 0
        loop = asyncio.get_running_loop()
        if self._verdicts == VERDICTS or (self._last is not None and loop.time() + _SOON >= self._last):
            self._end.come()
        else:
            self._timer = loop.call_later(AGAIN, self._judge)

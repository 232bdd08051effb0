"""The last hour of this node: a sample each ten seconds, so that graphs do not begin when a page is opened."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import msgspec

from viiwork_core.engines.gpus.gpu import Gpu
from viiwork_core.node import machine
from viiwork_core.node.views import Views

INTERVAL_S: Final = 10.0
KEPT: Final = 360
"""Samples: an hour."""


class CardSample(msgspec.Struct, frozen=True, omit_defaults=True):
    """One GPU at one moment. What is not known is absent."""

    index: int
    util: float | None = None
    """0 to 100."""

    vram_used_mb: int | None = None
    power_w: float | None = None

    @classmethod
    def of(cls, card: Gpu) -> CardSample:
        """The card's last reading."""
        return cls(card.index, card.utilisation, card.memory_used, card.power)


class Sample(msgspec.Struct, frozen=True, omit_defaults=True):
    """One moment."""

    t: int
    """Unix seconds."""

    slots: int
    """Of healthy backends."""

    busy: int
    queued: int
    """Requests that wait here, for models of other nodes as well."""

    host_mem_used_mb: int
    gpus: tuple[CardSample, ...] | None = None
    """None: not known."""


def sample(views: Views) -> Sample:
    """Take a sample of this moment."""
    rooms = [room for model in views.models if (room := views.book.room(model.name)) is not None]
    waited_for = {model.name for model in views.models} | set(views.router.waited_for())
    cards = views.gpus()
    return Sample(
        t=int(views.clock.wall()),
        slots=sum(room.slots for room in rooms),
        busy=sum(room.busy for room in rooms),
        queued=sum(views.router.queued(name) for name in waited_for),
        host_mem_used_mb=machine.memory_mb()[1],
        gpus=None if cards is None else tuple(map(CardSample.of, cards)),
    )


class History:
    """The newest samples; the oldest goes first. On the data loop."""

    def __init__(self, look: Callable[[], Sample], *, interval_s: float = INTERVAL_S) -> None:
        self._look = look
        self._interval_s = interval_s
        self._ring: deque[Sample] = deque(maxlen=KEPT)

    def add(self) -> None:
        """Take a sample now."""
        self._ring.append(self._look())

    async def run(self) -> None:
        """Take one each interval until cancelled."""
        while True:
            self.add()
            await asyncio.sleep(self._interval_s)

    def newest(self) -> Sample | None:
        """The last one; None: there is none yet."""
        return self._ring[-1] if self._ring else None

    def told(self) -> dict[str, Any]:
        """GET /v1/status/history: all that are kept, oldest first."""
        return {"interval_s": self._interval_s, "max_samples": KEPT, "samples": list(self._ring)}

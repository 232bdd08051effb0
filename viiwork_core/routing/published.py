"""What this node publishes of the conversations that it served."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from viiwork_core.routing.heads import Head, Kind

LIMIT: Final = 256
"""Conversations of one model, about 40 KiB in a report."""

ACTIVE_S: Final = 120.0
"""Seconds after which a silent conversation is not expected to go on at any time."""

COUNT_S: Final = 0.5
"""Seconds for which the number of active conversations is taken for the same."""

TRUSTED: Final = 2
"""Conversations that are taken to have come back before any has, or has not."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a conversation's cache is on this node."""

    kind: Kind
    backend: str | None
    tokens: int


Where = Callable[[str], Place | None]
"""Where a session (keyed hash) is now; None: nowhere any more."""


@dataclass(slots=True)
class _Served:
    head: Head
    at: float
    again: bool
    """It came back here."""


class Published:
    """By model, the conversations whose last turn ended here. Pure, on the data loop."""

    def __init__(self) -> None:
        self._models: dict[str, OrderedDict[str, _Served]] = {}
        """By session, the one silent for longest first."""

        self._counted: dict[str, tuple[float, int]] = {}
        """By model: when the active ones were counted last, and how many they were."""

    def ended(self, model: str, head: Head, now: float) -> None:
        """A turn of the conversation has ended on this node."""
        served = self._models.setdefault(model, OrderedDict())
        served[head.session] = _Served(head, now, head.session in served)
        served.move_to_end(head.session)
        if len(served) > LIMIT:
            served.popitem(last=False)

    def adopt(self, model: str, head: Head, now: float) -> None:
        """Another node's conversation goes on from this one's replica, unless a newer turn of it ended here."""
        served = self._models.get(model)
        known = served.get(head.session) if served else None
        if known is None or known.head.turn < head.turn:
            self.ended(model, head, now)

    def heads(self, model: str, where: Where) -> list[Head]:
        """Those that are still somewhere here, the newest last."""
        found = ((served.head, where(session)) for session, served in self._models.get(model, {}).items())
        return [
            replace(head, kind=place.kind, backend=place.backend, tokens=place.tokens) for head, place in found if place
        ]

    def active(self, model: str, now: float) -> int:
        """How many may go on at any time.

        One that had a single turn counts for the share of such that came back: many requests are no conversation, and
        nothing in them says so. Counted at most once in COUNT_S: every request asks, and counting is not cheap.
        """
        counted = self._counted.get(model)
        if counted is None or now - counted[0] >= COUNT_S:
            counted = self._counted[model] = (now, self._count(model, now))
        return counted[1]

    def _count(self, model: str, now: float) -> int:
        sure = unsure = again = over = 0
        for served in self._models.get(model, {}).values():
            recent = now - served.at < ACTIVE_S
            again += served.again
            over += not served.again and not recent
            sure += served.again and recent
            unsure += not served.again and recent
        return sure + round(unsure * (again + TRUSTED) / (again + over + TRUSTED))

    def forget(self, session: str) -> None:
        """Publish nothing of a session any more."""
        self._counted.clear()
        for served in self._models.values():
            served.pop(session, None)

"""Switches: where each turn of a session ran, compared with the turn before it. Pure, on the data loop."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

SESSIONS: Final = 65_536
"""Sessions whose last place is remembered."""

PRIOR_TURNS: Final = 20.0
PRIOR_MOVES: Final = 4.0
"""What is assumed of a model before its turns tell: one in five moves."""

MEMORY: Final = 400.0
"""Turns after which what was seen counts half."""


class Switch(StrEnum):
    """What a session changed between two turns."""

    NONE = "none"
    """Same backend."""

    BACKEND = "backend"
    """Another backend of the same host."""

    HOST = "host"


@dataclass(slots=True)
class _Seen:
    turns: float = 0.0
    moves: float = 0.0


class Switches:
    """By model and session, the last turn that ran here and its backend."""

    def __init__(self) -> None:
        self._last: OrderedDict[tuple[str, str], tuple[int, str]] = OrderedDict()
        self._seen: dict[str, _Seen] = {}

    def ended(self, model: str, session: str, *, number: int, backend: str, continues: bool = False) -> Switch | None:
        """Turn `number` of a session has ended on this host's `backend`; None: it was the session's first.

        The turn before is known to be `number - 1`. `continues`: there was one, whatever the number says.
        """
        here = self._last.pop((model, session), None)
        self._last[model, session] = (number, backend)
        if len(self._last) > SESSIONS:
            self._last.popitem(last=False)
        switch = self._compared(here, number, backend, continues=continues)
        if switch is not None:
            self._count(model, switch)
        return switch

    @staticmethod
    def _compared(here: tuple[int, str] | None, number: int, backend: str, *, continues: bool) -> Switch | None:
        if here is None or here[0] < number - 1:
            return Switch.HOST if continues or number > 1 else None
        return Switch.NONE if here[1] == backend else Switch.BACKEND

    def _count(self, model: str, switch: Switch) -> None:
        seen = self._seen.setdefault(model, _Seen())
        seen.turns += 1
        seen.moves += switch is Switch.HOST
        if seen.turns >= MEMORY:
            seen.turns, seen.moves = seen.turns / 2, seen.moves / 2

    def chance(self, model: str) -> float:
        """The chance that a session's next turn runs on another host than its last.

        Seen where sessions arrive: over a while, as many leave.
        """
        seen = self._seen.get(model, _Seen())
        return (seen.moves + PRIOR_MOVES) / (seen.turns + PRIOR_TURNS)

    def forget(self, session: str) -> None:
        """Nothing is known of the session any more."""
        for key in [key for key in self._last if key[1] == session]:
            del self._last[key]

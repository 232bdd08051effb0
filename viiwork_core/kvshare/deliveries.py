"""Deliveries: which turn of each session another member has acknowledged, and what is on its way to one.

In memory, on the data loop.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from viiwork_core.kvshare.sending import Delivery, Save
from viiwork_core.mesh.member import Member

MOST_SESSIONS: Final = 4096
"""Sessions whose last acknowledged turn is remembered."""

Key = tuple[str, str]
"""Model, session."""


class Deliveries:
    """Told of each save that is offered to the sender, and of how it ended."""

    def __init__(self) -> None:
        self._acknowledged: OrderedDict[Key, tuple[int, str]] = OrderedDict()
        """The turn, and the name of the member that has it; the longest ago first."""

        self._under_way: dict[Key, list[int]] = {}
        self._failed: OrderedDict[Key, tuple[int, str]] = OrderedDict()
        """The turn that was not taken last, and why."""

    def offered(self, save: Save[Member]) -> None:
        """The sender has it."""
        self._under_way.setdefault((save.label.model, save.label.session), []).append(save.label.turn)

    def ended(self, delivery: Delivery[Member]) -> None:
        """The sender is done with it, however."""
        label, node = delivery.save.label, delivery.save.target.node
        key = label.model, label.session
        turns = self._under_way.get(key, [])
        if label.turn in turns:
            turns.remove(label.turn)
        if not turns:
            self._under_way.pop(key, None)
        if delivery.error is None:
            self._failed.pop(key, None)
            _note(self._acknowledged, key, (label.turn, node))
        else:
            _note(self._failed, key, (label.turn, delivery.error))

    def has(self, model: str, session: str, turn: int, node: str) -> bool:
        """Whether a member has acknowledged that turn of a session, or a later one."""
        known = self._acknowledged.get((model, session))
        return known is not None and known[0] >= turn and known[1] == node

    def under_way(self, model: str, session: str, turn: int) -> bool:
        """Whether that turn, or a later one, waits to be sent or is being sent."""
        return any(one >= turn for one in self._under_way.get((model, session), ()))

    def failure(self, model: str, session: str, turn: int) -> str | None:
        """Why the turn was not taken when it was sent last; None: it was not refused."""
        known = self._failed.get((model, session))
        return known[1] if known is not None and known[0] >= turn else None


def _note(notes: OrderedDict[Key, tuple[int, str]], key: Key, note: tuple[int, str]) -> None:
    notes.pop(key, None)
    notes[key] = note
    if len(notes) > MOST_SESSIONS:
        notes.popitem(last=False)

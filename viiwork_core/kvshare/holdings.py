"""Holdings: the book of which session each engine's cache holds, as far as this node's own turns tell.

Pure and without I/O; it lives on the data loop. It is a belief: an engine may evict what it holds without a word, so
the planner asks the engine where it can, and the tokens that a turn reused are the proof.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

LOOSE_LIMIT = 256
"""Sessions remembered for one backend whose engine has no slots."""

TURNS_LIMIT = 65_536
"""Sessions whose newest turn is remembered."""


@dataclass(frozen=True, slots=True)
class Held:
    """What one cache holds of a session."""

    session: str
    turn: int
    tokens: int


@dataclass(slots=True)
class _Backend:
    incarnation: int
    slots: dict[int, Held] = field(default_factory=dict)
    loose: OrderedDict[str, Held] = field(default_factory=OrderedDict)
    """By session, for an engine without slots, the oldest first."""

    def all(self) -> list[tuple[int | None, Held]]:
        return [*self.slots.items(), *((None, held) for held in self.loose.values())]


class Holdings:
    """By backend and slot. A backend's new incarnation holds nothing, and what is said of an older one is ignored."""

    def __init__(self) -> None:
        self._backends: dict[str, _Backend] = {}
        self._turns: OrderedDict[str, int] = OrderedDict()

    def put(self, backend: str, incarnation: int, slot: int | None, held: Held) -> None:
        """Note that a cache holds a session now, after a turn or an import. What its slot held before is gone."""
        self.saw(held.session, held.turn)
        book = self._current(backend, incarnation)
        if book is None:
            return
        if slot is not None:
            book.slots[slot] = held
            return
        book.loose[held.session] = held
        book.loose.move_to_end(held.session)
        if len(book.loose) > LOOSE_LIMIT:
            book.loose.popitem(last=False)

    def at(self, backend: str, incarnation: int, slot: int) -> Held | None:
        """What a slot holds; None: nothing that is known."""
        book = self._current(backend, incarnation)
        return book.slots.get(slot) if book else None

    def find(self, backend: str, incarnation: int, session: str) -> tuple[int | None, Held] | None:
        """Where a backend holds a session, its newest turn: the slot (None for an engine without) and what it holds."""
        book = self._current(backend, incarnation)
        if book is None:
            return None
        # Asked several times a request: without a look at each of the many that an engine without slots may hold.
        found: list[tuple[int | None, Held]] = [
            (slot, held) for slot, held in book.slots.items() if held.session == session
        ]
        if (loose := book.loose.get(session)) is not None:
            found.append((None, loose))
        return max(found, key=lambda place: place[1].turn, default=None)

    def all(self, backend: str, incarnation: int) -> list[tuple[int | None, Held]]:
        """Everything that a backend holds: the slot (None for an engine without) and what it holds."""
        book = self._current(backend, incarnation)
        return book.all() if book else []

    def clear(self, backend: str, incarnation: int, slot: int | None, session: str | None = None) -> None:
        """Note that a slot is empty now, as after a failed restore.

        For an engine without slots, `session` is what is gone; None: all of it.
        """
        book = self._current(backend, incarnation)
        if book is None:
            return
        if slot is not None:
            book.slots.pop(slot, None)
        elif session is not None:
            book.loose.pop(session, None)
        else:
            book.loose.clear()

    def forget(self, session: str) -> None:
        """Drop all that is known of a session, its turn too."""
        self._turns.pop(session, None)
        for book in self._backends.values():
            book.loose.pop(session, None)
            for slot in [slot for slot, held in book.slots.items() if held.session == session]:
                del book.slots[slot]

    def saw(self, session: str, turn: int) -> None:
        """Note that a turn exists, here or elsewhere: the counter never falls behind what was seen."""
        self._turns[session] = max(turn, self._turns.get(session, 0))
        self._turns.move_to_end(session)
        if len(self._turns) > TURNS_LIMIT:
            self._turns.popitem(last=False)

    def turn_of(self, session: str) -> int:
        """The newest turn known here, 0 before the first. It survives the engine that served it."""
        return self._turns.get(session, 0)

    def next_turn(self, session: str) -> int:
        """The number of the turn that starts now: one above every turn known here."""
        return self.turn_of(session) + 1

    def _current(self, backend: str, incarnation: int) -> _Backend | None:
        """The backend's book, emptied when `incarnation` is a new one; None when it is an old one."""
        book = self._backends.get(backend)
        if book is None or book.incarnation < incarnation:
            book = self._backends[backend] = _Backend(incarnation)
        return book if book.incarnation == incarnation else None

"""Choosing a backend of this node: rank and reserve in one uninterrupted step."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from viiwork_core.contracts.policy import Candidate, Policy, Query
from viiwork_core.engines.slots import Reservation, Room, SlotBook
from viiwork_core.engines.states import BackendView


@dataclass(frozen=True, slots=True)
class Held:
    """What a backend holds of a session."""

    tokens: int
    slot: int | None
    """Where, for engines whose slots are addressed by number."""


HeldBy = Callable[[BackendView, str], Held | None]
"""Asks the book of holdings what a backend holds of a session (keyed hash)."""


def held_nothing(view: BackendView, session: str) -> Held | None:
    """For a node that keeps no book of holdings."""
    del view, session
    return None


class LocalBackends:
    """This node's backends as places for requests."""

    def __init__(self, book: SlotBook, policy: Policy, rng: random.Random, held: HeldBy = held_nothing) -> None:
        self._book = book
        self._policy = policy
        self._rng = rng
        self._held = held

    def room(self, model: str) -> Room | None:
        """What the model has here; None: it is not one of this node's."""
        return self._book.room(model)

    def models(self) -> tuple[str, ...]:
        """This node's models, each once."""
        return tuple(dict.fromkeys(view.model for view in self._book.views()))

    def held(self, query: Query) -> int | None:
        """The most tokens that any open backend here holds of the query's session; None: unknown."""
        if query.session is None:
            return None
        found = (self._held(view, query.session) for view, _ in self._book.open_backends(query.model))
        return max((held.tokens for held in found if held), default=None)

    def reserve(self, query: Query, weight: int) -> Reservation | None:
        """Reserve slots on the backend that the policy ranks first; None: no room.

        A request that weighs more than any backend has slots takes a whole backend.
        """
        views = {}
        candidates = []
        for view, free in self._book.open_backends(query.model):
            if free >= min(weight, view.slots):
                views[view.id] = view
                candidates.append(self._candidate(view, free, query))
        for backend_id in self._policy.rank(query, candidates, self._rng):
            view = views[backend_id]
            held = self._held(view, query.session) if query.session else None
            prefer = held.slot if held else None
            taken = self._book.reserve(backend_id, weight=min(weight, view.slots), prefer=prefer)
            if taken is not None:
                return taken
        return None

    def _candidate(self, view: BackendView, free: int, query: Query) -> Candidate:
        held = self._held(view, query.session) if query.session else None
        waiting = view.load.waiting if view.load else None
        return Candidate(
            id=view.id,
            local=True,
            slots=view.slots,
            free=free,
            waiting=waiting,
            rtt_ms=0.0,
            held_tokens=held.tokens if held else None,
        )

"""Choosing a backend of this node: rank and reserve in one uninterrupted step."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from viiwork_core.contracts.policy import Candidate, Policy, Query
from viiwork_core.engines.slots import Reservation, Room, SlotBook
from viiwork_core.engines.states import BackendState, BackendView


@dataclass(frozen=True, slots=True)
class Held:
    """What a backend holds of a session."""

    tokens: int
    slot: int | None
    """Where, for engines whose slots are addressed by number."""


Fitting = Sequence[tuple[BackendView, int]]
"""Backends with room, each with its free slots."""

LONGEST_REASON = 1000
_LONGEST_WORDS = 300

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
        self.closed = False
        """Whether the node drains: nothing new is placed here. What runs goes on."""

    def room(self, model: str) -> Room | None:
        """What the model has here for new requests; None: it is not one of this node's, or the node drains."""
        return None if self.closed else self._book.room(model)

    def has(self, model: str) -> bool:
        """Whether it is one of this node's, also while the node drains."""
        return self._book.room(model) is not None

    def models(self) -> tuple[str, ...]:
        """This node's models, each once; without those that are on their way out."""
        return tuple(dict.fromkeys(view.model for view in self._book.views() if not view.leaving))

    def parked(self, model: str) -> bool:
        """Whether the model was taken down here, or is being so."""
        return any(view.model == model and view.goal is BackendState.PARKED for view in self._book.views())

    def given_up(self, model: str) -> str | None:
        """What the model's backends here died of, if all of them are dead for good; None: they may serve."""
        known = [view for view in self._book.views() if view.model == model and not view.leaving]
        if not known or any(view.state is not BackendState.DEAD for view in known):
            return None
        return "; ".join(dict.fromkeys(_shortened(view.reason or "it ended") for view in known))[:LONGEST_REASON]

    def trusts(self, model: str) -> bool:
        """Whether a backend of the model here serves that has not just refused or failed."""
        return self._book.trusts(model)

    def held(self, query: Query, fitting: Fitting) -> int | None:
        """The most tokens that any of `fitting` holds of the query's session, or of all backends where that is empty;
        None: unknown."""
        views = [view for view, _ in fitting] or [view for view in self._book.views() if view.model == query.model]
        found = [held.tokens for view in views if (held := self._held_by(view, query))]
        return max(found, default=None)

    def _held_by(self, view: BackendView, query: Query) -> Held | None:
        """What a backend holds of the query's session; nothing, where that has just got its name."""
        return None if query.session is None or query.begins else self._held(view, query.session)

    def free(self, model: str, weight: int, tried: Collection[str] = ()) -> int:
        """Free slots of the backends that `reserve` would choose from."""
        return sum([free for _, free in self.fitting(model, weight, tried)])

    def fitting(self, model: str, weight: int, tried: Collection[str] = ()) -> Fitting:
        """Backends with room for a request. One that weighs more than a backend has slots takes it whole."""
        known = () if self.closed else self._book.open_backends(model)
        return [(view, free) for view, free in known if view.id not in tried and free >= min(weight, view.slots)]

    def reserve(
        self, query: Query, weight: int, tried: Collection[str] = (), *, fitting: Fitting | None = None
    ) -> Reservation | None:
        """Reserve slots on the backend that the policy ranks first, those in `tried` left out; None: no room.

        `fitting`: who has room, where the caller has just asked.
        """
        fitting = self.fitting(query.model, weight, tried) if fitting is None else fitting
        places = {view.id: (view, free, self._held_by(view, query)) for view, free in fitting}
        candidates = [_candidate(view, free, held) for view, free, held in places.values()]
        for backend_id in self._policy.rank(query, candidates, self._rng) if candidates else ():
            view, _, held = places[backend_id]
            prefer = held.slot if held else None
            taken = self._book.reserve(backend_id, weight=min(weight, view.slots), prefer=prefer)
            if taken is not None:
                return taken
        return None


def _candidate(view: BackendView, free: int, held: Held | None) -> Candidate:
    waiting = view.load.waiting if view.load else None
    tokens = held.tokens if held else None
    return Candidate(view.id, local=True, slots=view.slots, free=free, waiting=waiting, rtt_ms=0.0, held_tokens=tokens)


def _shortened(reason: str) -> str:
    """On one line; of many words the first, which say how it ended, and the last, which say why."""
    words = " ".join(reason.split())
    half = _LONGEST_WORDS // 2
    return words if len(words) <= _LONGEST_WORDS else f"{words[:half]} ... {words[-half:]}"

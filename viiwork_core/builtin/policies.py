"""The routing policies that come with the core."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Mapping, Sequence

from viiwork_core import Candidate, PluginOptions, Policy, Query

_REMEMBERED = 4096
"""Places round_robin remembers before it forgets the ones used longest ago."""


class LeastBusy(Policy):
    """Keeps a session where its tokens are, and spreads the rest to where most room is.

    With a session that did not just begin: places that hold tokens of it first, then all in the order of a rendezvous
    hash, which every node computes alike, and which moves only the sessions of a place that comes or goes. Else: local,
    then most free slots, then the shortest way, then by chance.
    """

    name = "least_busy"

    def rank(self, query: Query, candidates: Sequence[Candidate], rng: random.Random) -> Sequence[str]:
        if query.session is None or query.begins:
            # By name, so that chance falls alike on the same places in another order.
            keyed = [(*_room(place), rng.random(), place.id) for place in sorted(candidates, key=lambda one: one.id)]
            return [entry[-1] for entry in sorted(keyed)]
        weight = rendezvous(query.session)
        ordered = sorted(candidates, key=lambda place: (not place.held_tokens, -weight(place.id), place.id))
        return [candidate.id for candidate in ordered]

    def prices(self, query: Query, candidates: Sequence[Candidate]) -> Mapping[str, float]:
        """There are none."""
        del query, candidates
        return {}

    def explain(self, query: Query, candidates: Sequence[Candidate], first: str) -> str:
        """In a few words, why `first` was ranked first."""
        place = next(place for place in candidates if place.id == first)
        if query.session is None or query.begins:
            return "this node" if place.local else "most free slots"
        return "it holds tokens of the session" if place.held_tokens else "the session's own by its hash"


class RoundRobin(Policy):
    """Each place in turn, whatever the session: the one used longest ago first."""

    name = "round_robin"

    def __init__(self, options: PluginOptions) -> None:
        super().__init__(options)
        self._turn = 0
        self._used: dict[tuple[str, str], int] = {}

    def rank(self, query: Query, candidates: Sequence[Candidate], rng: random.Random) -> Sequence[str]:
        del rng
        used, model = self._used, query.model
        ordered = sorted((candidate.id for candidate in candidates), key=lambda id_: (used.get((model, id_), 0), id_))
        if ordered:
            self._remember((model, ordered[0]))
        return ordered

    def _remember(self, key: tuple[str, str]) -> None:
        self._turn += 1
        # Taken out first, so that the dictionary's order is the order of use.
        self._used.pop(key, None)
        self._used[key] = self._turn
        if len(self._used) > _REMEMBERED:
            del self._used[next(iter(self._used))]


def _room(candidate: Candidate) -> tuple[bool, int, float]:
    rtt = float("inf") if candidate.rtt_ms is None else candidate.rtt_ms
    return not candidate.local, -candidate.free, rtt


def rendezvous(session: str) -> Callable[[str], int]:
    """The weight of each place for a session: alike on every node, and moving only where a place comes or goes."""
    key = hashlib.blake2b(session.encode()).digest()
    return lambda place: int.from_bytes(hashlib.blake2b(place.encode(), digest_size=8, key=key).digest())

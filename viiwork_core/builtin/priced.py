"""Policies that go by how soon a place would give the first token."""

from __future__ import annotations

import math
import random
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace

from viiwork_core import Candidate, NoOptions, PluginOptions, Policy, Query, Score
from viiwork_core.builtin.policies import LeastBusy, rendezvous

BAND = 1.25
"""Places whose price is at most so many times the best are as good as each other."""

EXPLORED = 0.05
"""Share of the requests that begin a conversation, or belong to none, which go to a place without a score."""


LATER_TURNS = 8
"""Turns that a new conversation is expected to come back for."""


class Priced(Policy):
    """Ranks by price: the predicted time to the first token, in ms.

    A place that has no score yet is priced at the median of all. Where nobody has one, least_busy ranks.
    """

    def __init__(self, options: PluginOptions) -> None:
        super().__init__(options)
        self._unpriced = LeastBusy(NoOptions())

    @abstractmethod
    def price(self, query: Query, candidate: Candidate) -> float:
        """Predicted milliseconds to the first token. Candidate or query have a score."""

    def rank(self, query: Query, candidates: Sequence[Candidate], rng: random.Random) -> Sequence[str]:
        query = _typical(query, candidates)
        if query.typical is None:
            return self._unpriced.rank(query, candidates, rng)
        # By name, so that chance falls alike on the same places in another order.
        places = sorted(candidates, key=lambda place: place.id)
        priced = self._prices(query, places)
        bound = BAND * min(priced.values(), default=0.0)
        band = self._band([place for place in places if priced[place.id] <= bound], query, priced, rng)
        beyond = sorted((id_ for id_ in priced if priced[id_] > bound), key=lambda id_: (priced[id_], id_))
        worth = BAND * min((self.price(query, place) + place.wait_ms for place in query.full), default=math.inf)
        # What costs more than to wait for the place that holds the session is left out.
        return [id_ for id_ in _explored(query, places, [*band, *beyond], rng) if priced[id_] <= worth]

    def _prices(self, query: Query, places: Sequence[Candidate]) -> dict[str, float]:
        # A conversation that begins here comes back: what its later turns would wait counts now, while it can choose.
        begins = query.session is not None and not query.continues
        return {
            place.id: self.price(query, place) + (LATER_TURNS * place.crowd_ms if begins else 0.0) for place in places
        }

    def prices(self, query: Query, candidates: Sequence[Candidate]) -> Mapping[str, float]:
        """What a ranking went by, in ms; empty where nobody has a score."""
        query = _typical(query, candidates)
        return {} if query.typical is None else self._prices(query, candidates)

    def explain(self, query: Query, candidates: Sequence[Candidate], first: str) -> str:
        """In a few words, why `first` was ranked first."""
        priced = self.prices(query, candidates)
        if not priced:
            return self._unpriced.explain(query, candidates, first)
        bound = BAND * min(priced.values())
        band = [place for place in candidates if priced[place.id] <= bound]
        place = next(place for place in candidates if place.id == first)
        among = f"of {len(band)} places within {BAND:g} times the lowest price" if len(band) > 1 else "the lowest price"
        if place not in band:
            unknown = "no score yet: tried, so that it earns one"
            return unknown if place.score is None else "the next in price after those that did not take it"
        if len(band) == 1:
            return among
        if query.session is not None and not query.begins:
            if _usable(place):
                return f"{among}, the one that holds most of the session"
            return f"{among}, the session's own by its hash"
        return f"{among}, this node" if place.local else f"{among}, drawn by speed"

    @staticmethod
    def _band(places: Sequence[Candidate], query: Query, priced: dict[str, float], rng: random.Random) -> list[str]:
        """The order among equals: whoever holds most of the session, then its rendezvous; without one local places by
        their room, then a draw in which the faster come first more often."""
        if query.session is not None and not query.begins:
            weight = rendezvous(query.session)
            ordered = sorted(places, key=lambda place: (-_usable(place), -weight(place.id), place.id))
        else:
            draws = {place.id: rng.random() for place in places}
            # A draw to the power of 1/w comes out highest with a chance in proportion to w.
            late = {id_: -(draw ** (priced[id_] ** 3 / priced[places[0].id] ** 3)) for id_, draw in draws.items()}
            ordered = sorted(
                places, key=lambda p: (not p.local, -p.free if p.local else 0, draws[p.id] if p.local else late[p.id])
            )
        return [place.id for place in ordered]


class Fastest(Priced):
    """Goes where the first token comes first.

    The price is overhead + rate x uncached tokens + round trip. Within 1.25 times the best: the place that holds the
    session's tokens, else the one of its rendezvous; without a session local, else a draw weighted by speed.
    """

    name = "fastest"

    def price(self, query: Query, candidate: Candidate) -> float:
        score = candidate.score or query.typical
        assert score is not None, "ranked by another policy"
        return score.first_token_ms(max(0, query.prompt_tokens - _usable(candidate))) + (candidate.rtt_ms or 0.0)


class CacheAware(Priced):
    """As fastest, and it also counts who waits inside an engine, and what a replica would save.

    A replica counts once the time of an import was measured there: the price is the lower of reading the prompt and of
    importing first.
    """

    name = "cache_aware"

    def price(self, query: Query, candidate: Candidate) -> float:
        score = candidate.score or query.typical
        assert score is not None, "ranked by another policy"
        read = score.first_token_ms(max(0, query.prompt_tokens - _usable(candidate)))
        if candidate.replica_tokens is not None and candidate.import_ms is not None:
            rest = score.first_token_ms(max(0, query.prompt_tokens - candidate.replica_tokens))
            read = min(read, candidate.import_ms + rest)
        # Whoever waits in the engine has a prompt of its own to be read first; this one's length is the best guess.
        queued = (candidate.waiting or 0) * score.first_token_ms(query.prompt_tokens) / max(1, candidate.slots)
        return read + queued + (candidate.rtt_ms or 0.0)


def _typical(query: Query, candidates: Sequence[Candidate]) -> Query:
    """The query with a median score, if anybody has a score."""
    if query.typical is not None:
        return query
    scores = [place.score for place in candidates if place.score]
    return replace(query, typical=Score.median(scores)) if scores else query


def _usable(candidate: Candidate) -> int:
    return candidate.held_tokens or 0


def _explored(query: Query, places: Sequence[Candidate], ranked: list[str], rng: random.Random) -> list[str]:
    """Now and then a place without a score comes first, so that it can earn one; never with a conversation under way,
    whose cache is elsewhere."""
    learners = [place.id for place in places if place.score is None]
    if query.continues or not learners or rng.random() >= EXPLORED:
        return ranked
    chosen = rng.choice(learners)
    return [chosen, *(id_ for id_ in ranked if id_ != chosen)]

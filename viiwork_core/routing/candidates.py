"""Hosts as candidates: what is known of each that serves a model, beside its room."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace

from viiwork_core.contracts.policy import Candidate, Query, Score
from viiwork_core.engines.slots import Room
from viiwork_core.mesh.capacity import PeerView
from viiwork_core.mesh.report import ModelReport
from viiwork_core.routing.backends import LocalBackends
from viiwork_core.routing.heads import Conversations, Kind

ScoreOf = Callable[[str], Score | None]
"""This node's own score of a model."""


ServiceOf = Callable[[str], float | None]
"""Seconds that a request for a model holds a slot of this node; None: not measured."""


def unmeasured(model: str) -> None:
    """For a node that measures nothing."""
    del model


class Candidates:
    """Puts together what policies rank. On the data loop."""

    def __init__(
        self,
        local: LocalBackends,
        conversations: Conversations | None = None,
        score_of: ScoreOf = unmeasured,
        service_of: ServiceOf = unmeasured,
    ) -> None:
        self._local = local
        self._conversations = conversations or Conversations()
        self._score_of = score_of
        self._service_of = service_of

    def query(self, query: Query, reports: Iterable[ModelReport]) -> Query:
        """The query with the median score of the hosts that serve its model: this one, and those of `reports`."""
        scores = [self._score_of(query.model), *(_score(report) for report in reports)]
        return replace(query, typical=Score.median([score for score in scores if score is not None]))

    def here(self, node: str, room: Room, free: int, query: Query, *, queued: int = 0) -> Candidate:
        """This host."""
        return Candidate(
            id=node,
            local=True,
            slots=room.slots,
            free=free,
            rtt_ms=0.0,
            held_tokens=self._local.held(query) if free else self._local.held_anywhere(query),
            score=self._score_of(query.model),
            wait_ms=0.0 if free else _wait_ms(self._service_of(query.model), queued, room.slots),
        )

    def there(self, view: PeerView, about: ModelReport, query: Query, free: int) -> Candidate:
        """Another host, as it reports itself."""
        node = view.member.node
        head = self._conversations.at(node, query.model, query.session) if query.session is not None else None
        replica = head is not None and head.kind is Kind.REPLICA
        return Candidate(
            id=node,
            local=False,
            slots=about.slots,
            free=free,
            waiting=about.queued,
            rtt_ms=view.rtt_ms,
            held_tokens=head.tokens if head and not replica else None,
            score=_score(about),
            replica_tokens=head.tokens if head and replica else None,
            wait_ms=0.0 if free else _wait_ms(about.service_s, about.queued, about.slots),
        )


def _wait_ms(service_s: float | None, queued: int, slots: int) -> float:
    """Until a slot of a full host comes free for one more. Infinite where it is not known how long a request takes."""
    return math.inf if service_s is None or not slots else 1000 * service_s * (queued + 1) / slots


def _score(report: ModelReport) -> Score | None:
    told = report.score
    return None if told is None else Score(told.overhead_ms, told.ms_per_1k)

"""Hosts as candidates: what is known of each that serves a model, beside its room."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from viiwork_core.contracts.policy import Candidate, Query, Score
from viiwork_core.engines.slots import Room
from viiwork_core.mesh.capacity import PeerView
from viiwork_core.mesh.report import ModelReport
from viiwork_core.routing.backends import Fitting, LocalBackends
from viiwork_core.routing.heads import Conversations, Kind

ScoreOf = Callable[[str], Score | None]
"""This node's own score of a model."""


ServiceOf = Callable[[str], float | None]
"""Seconds that a request for a model holds a slot of this node; None: not measured."""


def unmeasured(model: str) -> None:
    """For a node that measures nothing."""
    del model


ActiveOf = Callable[[str], int]
"""Conversations of a model that this node served of late."""


def none_active(model: str) -> int:
    """For a node that keeps no book of conversations."""
    del model
    return 0


ReplicaOf = Callable[[str, str], int | None]
"""Tokens of a session's replica (model, session) that lies on this node; None: there is none."""


def none_replicated(model: str, session: str) -> None:
    """For a node that shares no caches."""
    del model, session


class Candidates:
    """Puts together what policies rank. On the data loop."""

    def __init__(
        self,
        local: LocalBackends,
        conversations: Conversations | None = None,
        score_of: ScoreOf = unmeasured,
        service_of: ServiceOf = unmeasured,
        active_of: ActiveOf = none_active,
        replica_of: ReplicaOf = none_replicated,
        import_of: ServiceOf = unmeasured,
    ) -> None:
        """`import_of`: milliseconds that importing 1,000 tokens of a model takes here; None: not measured."""
        self._local = local
        self._conversations = conversations or Conversations()
        self._score_of = score_of
        self._service_of = service_of
        self._active_of = active_of
        self._replica_of = replica_of
        self._import_of = import_of

    def service_s(self, model: str) -> float | None:
        """Seconds that a request for a model holds a slot of this host; None: not measured."""
        return self._service_of(model)

    def typical(self, model: str, reports: Iterable[ModelReport]) -> Score | None:
        """The median score of the hosts that serve a model: this one, and those of `reports`."""
        scores = [self._score_of(model), *(score_of(report) for report in reports)]
        return Score.median([score for score in scores if score is not None])

    def here(self, node: str, room: Room, fitting: Fitting, query: Query, *, queued: int = 0) -> Candidate:
        """This host. `fitting`: its backends that would take the request; none: it is full."""
        service_s = self._service_of(query.model)
        free = sum([free for _, free in fitting])
        held = self._local.held(query, fitting)
        session = None if query.begins else query.session
        replica = self._replica_of(query.model, session) if session is not None and not held else None
        return Candidate(
            id=node,
            local=True,
            slots=room.slots,
            free=free,
            rtt_ms=0.0,
            held_tokens=held,
            score=self._score_of(query.model),
            replica_tokens=replica,
            import_ms=_import_ms(self._import_of(query.model), replica),
            wait_ms=0.0 if free else _wait_ms(service_s, queued, room.slots),
            crowd_ms=_crowd_ms(service_s, self._active_of(query.model), room.slots),
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
            score=score_of(about),
            replica_tokens=head.tokens if head and replica else None,
            import_ms=_import_ms(about.import_ms_per_1k, head.tokens if head and replica else None),
            wait_ms=0.0 if free else _wait_ms(about.service_s, about.queued, about.slots),
            crowd_ms=_crowd_ms(about.service_s, about.active, about.slots),
        )


def _import_ms(ms_per_1k: float | None, tokens: int | None) -> float | None:
    return None if ms_per_1k is None or tokens is None else ms_per_1k * tokens / 1000


def _wait_ms(service_s: float | None, queued: int, slots: int) -> float:
    """Until a slot of a full host comes free for one more. Infinite where it is not known how long a request takes."""
    return math.inf if service_s is None or not slots else 1000 * service_s * (queued + 1) / slots


def _crowd_ms(service_s: float | None, active: int, slots: int) -> float:
    """How long a turn waits once one more conversation than the active ones shares the slots, asking at any time."""
    return 0.0 if service_s is None or not slots else 1000 * service_s * max(0, active + 1 - slots) / slots


def score_of(report: ModelReport) -> Score | None:
    """The score that a report tells; None: it tells none."""
    told = report.score
    return None if told is None else Score(told.overhead_ms, told.ms_per_1k)

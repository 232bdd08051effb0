"""Targets: which member each session's caches go to."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from viiwork_core.clock import Clock
from viiwork_core.contracts.policy import Query
from viiwork_core.mesh.member import Member
from viiwork_core.mesh.report import KvReport
from viiwork_core.routing.router import Router

MOST_SESSIONS = 4096
"""Whose members are remembered."""


class Targets:
    """Which member each session's caches go to: chosen once, and kept while that member is there and its caches fit.

    What it has acknowledged is what the next turn is a delta against, so that a better choice is seldom worth a change.
    """

    def __init__(self, router: Callable[[], Router], clock: Clock) -> None:
        self._router, self._clock = router, clock
        self._kept: OrderedDict[tuple[str, str], str] = OrderedDict()
        """Name of the member by (model, session), the least recently asked for first."""

    def choose(self, model: str, session: str, group: str, fingerprint: str) -> Member | None:
        """The member that the session would go to next, if its caches fit: the policy's ranking without this host."""
        fitting = self._fitting(model, session, KvReport(group, fingerprint))
        kept = fitting.get(self._kept.pop((model, session), ""))
        member = kept or next(iter(fitting.values()), None)
        if member is not None:
            self._kept[model, session] = member.node
            if len(self._kept) > MOST_SESSIONS:
                self._kept.popitem(last=False)
        return member

    def _fitting(self, model: str, session: str, kv: KvReport) -> dict[str, Member]:
        """By name, in the order of the ranking."""
        query = Query(model=model, session=session, prompt_tokens=1)
        views = self._router().spill_order(query, self._clock.monotonic())
        reports = ((view.member, one) for view in views for one in view.report.models)
        return {member.node: member for member, one in reports if one.name == model and one.kv == kv}

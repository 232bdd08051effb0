"""How long a node takes to decide where a request goes, among hosts whose reports are made up."""

from __future__ import annotations

import random
import time
from statistics import median

from viiwork_core.builtin.priced import Fastest
from viiwork_core.clock import SystemClock
from viiwork_core.contracts.policy import Query
from viiwork_core.engines.slots import SlotBook
from viiwork_core.mesh.capacity import PeerView
from viiwork_core.mesh.member import Member
from viiwork_core.mesh.report import CapacityReport, ModelReport, ScoreReport
from viiwork_core.registry.guard import GuardedPolicy
from viiwork_core.routing.backends import LocalBackends, held_nothing
from viiwork_core.routing.router import Router
from viiwork_core.routing.ticket import There, Ticket

MODEL = "m"
_SLOTS = 4


def decision_ms(hosts: int, repeats: int) -> float:
    """Median ms from a request's arrival at the router to its place, by the default policy; the reports are fresh, and
    all hosts have room and a measured speed."""
    rng, clock = random.Random(1), SystemClock()  # noqa: S311  # draws of a policy, no secret
    policy = GuardedPolicy(Fastest(Fastest.Options()), clock=clock)
    local = LocalBackends(SlotBook(clock), policy, rng, held_nothing)
    router = Router(node="here", local=local, policy=policy, rng=rng, queue_max=64, stale_after=3.0)
    now = clock.monotonic()
    for number in range(hosts):
        router.report(_report(number, rng, now))
    return 1000 * median(_decided(router, f"{number:032x}", now) for number in range(repeats))


def _decided(router: Router, session: str, now: float) -> float:
    """Seconds of one decision."""
    began = time.perf_counter()
    placement = router.offer(Ticket(Query(MODEL, session, 2000), 1, now + 20), now)
    took = time.perf_counter() - began
    assert isinstance(placement, There), "all room is elsewhere"
    router.returned(placement)
    return took


def _report(number: int, rng: random.Random, now: float) -> PeerView:
    node = f"host-{number}"
    about = ModelReport(
        name=MODEL,
        engine="fake",
        slots=_SLOTS,
        busy=number % _SLOTS,
        queued=0,
        backends=2,
        healthy_backends=2,
        ctx=32768,
        score=ScoreReport(overhead_ms=rng.uniform(20, 200), ms_per_1k=rng.uniform(200, 5000)),
    )
    member = Member(node=node, node_id="1", host=f"10.0.0.{number + 1}", api_port=8086)
    return PeerView(member, CapacityReport(node=node, node_id="1", ver="1", models=(about,)), now, rng.uniform(0.2, 5))

"""Measure routing: python -m bench.routing.

The shares come from the simulator (viiwork simulate) but for the last two, which real llama-servers give. Prints a
table and, as its last line, RESULT with the figures as JSON. docs/routing.md says what they mean.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Callable
from statistics import median

from bench import conversations
from bench.cores import divide
from viiwork_core import NoOptions, Policy, Query
from viiwork_core.builtin.policies import LeastBusy
from viiwork_core.builtin.priced import Fastest
from viiwork_core.clock import SystemClock
from viiwork_core.engines.slots import SlotBook
from viiwork_core.mesh.capacity import PeerView
from viiwork_core.mesh.member import Member
from viiwork_core.mesh.report import CapacityReport, ModelReport, ScoreReport
from viiwork_core.routing.backends import LocalBackends
from viiwork_core.routing.router import Router
from viiwork_core.routing.ticket import There, Ticket
from viiwork_core.simulation.figures import Figures, figures
from viiwork_core.simulation.run import simulate
from viiwork_core.simulation.scenario import Names, load

HOSTS = 50
DECISIONS = 2000


def tell(line: str) -> None:
    """To whoever watches, at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def simulated(scenario: str, policy: type[Policy], names: Names) -> Figures:
    """The figures of one run, told."""
    found = figures(simulate(load(scenario), lambda: policy(NoOptions()), names))
    tell(
        f"{scenario:15} {policy.name:11} names: {names.value:7} reused >= 80 %: {found.hit_80:5.1f} %  "
        f"changed host: {found.moved_host:4.1f} %  changed backend: {found.moved_backend:4.1f} %  "
        f"first token p50 {found.first_token_p50:6.2f} s  p90 {found.first_token_p90:6.2f} s  "
        f"moved p50 {'-' if found.moved_p50 is None else f'{found.moved_p50:.1f} s'}"
    )
    return found


def decision_ms(hosts: int = HOSTS) -> float:
    """Median milliseconds to rank `hosts` members and take one, with the default policy, on one core."""
    clock = SystemClock()
    chance = random.Random(1)  # noqa: S311  # keeps no secret
    policy = Fastest(NoOptions())
    local = LocalBackends(SlotBook(clock), policy, chance)
    router = Router(node="here", local=local, policy=policy, rng=chance, queue_max=1, stale_after=1e9)
    for number in range(hosts):
        router.report(_view(number, clock.monotonic()))
    return median(_decide(router, f"{number:032x}", clock.monotonic) for number in range(DECISIONS))


def _view(number: int, now: float) -> PeerView:
    score = ScoreReport(overhead_ms=50.0 + number, ms_per_1k=400.0 + 10 * number)
    model = ModelReport("m", "e", 8, number % 7, 0, 2, 2, score=score, service_s=5.0)
    member = Member(f"host-{number}", f"id-{number}", "127.0.0.1", 1)
    return PeerView(member, CapacityReport(member.node, member.node_id, "1", (model,)), now, 1.0)


def _decide(router: Router, session: str, now: Callable[[], float]) -> float:
    began = time.perf_counter()
    placed = router.offer(Ticket(Query("m", session, 3000), 1, deadline=now() + 20), now())
    took = time.perf_counter() - began
    assert isinstance(placed, There)
    router.returned(placed)
    return 1000 * took


def main() -> None:
    """Entry point."""
    free = simulated("affinity-study", LeastBusy, Names.NONE)
    header = simulated("affinity-study", Fastest, Names.HEADER)
    chain = simulated("affinity-study", Fastest, Names.CHAIN)
    alike, fast = simulated("skewed", LeastBusy, Names.NONE), simulated("skewed", Fastest, Names.CHAIN)
    decision = decision_ms()
    tell(f"a decision among {HOSTS} hosts: {decision:.3f} ms")
    tell(f"{conversations.SESSIONS} conversations with {conversations.BACKENDS} llama-servers, fastest and round_robin")
    real, turns = conversations.measured(divide())
    result = {
        "affinity_random_hit": free.hit_80,
        "affinity_header_hit": header.hit_80,
        "affinity_noheader_hit": chain.hit_80,
        "skew_p90_ratio": alike.first_token_p90 / fast.first_token_p90,
        "decision_ms": decision,
        "real_noheader_share": real,
        "real_round_robin_share": turns,
    }
    tell(f"RESULT {json.dumps({name: round(value, 3) for name, value in result.items()})}")


if __name__ == "__main__":
    main()

"""A router with this node's backends and peers, driven by hand in a time of its own."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from viiwork_core import Address, Candidate, NoOptions, Policy, Query
from viiwork_core.engines.slots import SlotBook
from viiwork_core.engines.states import BackendState, BackendView
from viiwork_core.mesh.capacity import PeerView
from viiwork_core.mesh.member import Member
from viiwork_core.mesh.report import CapacityReport, ModelReport
from viiwork_core.routing.backends import HeldBy, LocalBackends, held_nothing
from viiwork_core.routing.candidates import Candidates
from viiwork_core.routing.router import Router
from viiwork_core.routing.ticket import Here, Placement, There, Ticket
from viiwork_core.testing.fake_clock import FakeClock

STALE_AFTER = 3.0


class InOrder(Policy):
    """Ranks by name, and remembers what it was asked."""

    name = "in-order"

    def __init__(self) -> None:
        super().__init__(NoOptions())
        self.asked: list[tuple[Query, tuple[Candidate, ...]]] = []

    def rank(self, query: Query, candidates: Sequence[Candidate], rng: random.Random) -> Sequence[str]:
        self.asked.append((query, tuple(candidates)))
        return sorted(candidate.id for candidate in candidates)

    def hosts(self) -> list[str]:
        """The candidates of the last question about hosts."""
        return [one.id for one in next(known for _, known in reversed(self.asked) if "/" not in known[0].id)]

    def candidate(self, name: str) -> Candidate:
        """The newest candidate of that name."""
        return next(one for _, known in reversed(self.asked) for one in known if one.id == name)


@dataclass
class Places:
    """This node is called "here"; time is `now`."""

    queue_max: int = 8
    held: HeldBy = held_nothing
    policy: InOrder = field(default_factory=InOrder)
    clock: FakeClock = field(default_factory=FakeClock)
    ranking: Policy | None = None
    """The policy for hosts, where that is another one than the policy for backends."""

    candidates: Callable[[LocalBackends], Candidates] = Candidates
    """What is known of hosts."""

    def __post_init__(self) -> None:
        self.book = SlotBook(self.clock)
        rng = random.Random(1)
        self.local = LocalBackends(self.book, self.policy, rng, self.held)
        self.router = Router(
            node="here",
            local=self.local,
            policy=self.ranking or self.policy,
            rng=rng,
            queue_max=self.queue_max,
            stale_after=STALE_AFTER,
            candidates=self.candidates(self.local),
        )

    @property
    def now(self) -> float:
        return self.clock.monotonic()

    def backend(self, slots: int = 1, index: int = 0, *, model: str = "m", healthy: bool = True) -> str:
        """A backend of this node."""
        state = BackendState.HEALTHY if healthy else BackendState.UNHEALTHY
        name = f"{model}/{index}"
        self.book.see(BackendView(name, model, "fake", state, 1, slots, address=Address("127.0.0.1", 1)))
        return name

    def peer(
        self,
        node: str,
        *,
        slots: int = 1,
        busy: int = 0,
        backends: int = 1,
        model: str = "m",
        asked_at: float | None = None,
        node_id: str = "1",
        ctx: int | None = None,
        dead: int = 0,
        first_byte_s: float | None = None,
        service_s: float | None = None,
    ) -> PeerView:
        """A report of another node."""
        about = ModelReport(
            name=model,
            engine="fake",
            slots=slots,
            busy=busy,
            queued=0,
            backends=max(backends + dead, 1),
            healthy_backends=backends,
            ctx=ctx,
            dead_backends=dead,
            first_byte_s=first_byte_s,
            service_s=service_s,
        )
        report = CapacityReport(node=node, node_id=node_id, ver="1", models=(about,))
        member = Member(node=node, node_id=node_id, host="127.0.0.2", api_port=1)
        view = PeerView(member, report, self.now if asked_at is None else asked_at, 1.0)
        self.router.report(view)
        return view

    def ticket(self, *, model: str = "m", weight: int = 1, wait: float = 20.0, **fields: object) -> Ticket:
        self.clock.advance(0.001)
        session = fields.pop("session", None)
        assert session is None or isinstance(session, str)
        return Ticket(Query(model, session, 1), weight, self.now + wait, **fields)  # type: ignore[arg-type]

    def offer(self, ticket: Ticket, *, again: bool = False) -> Placement | None:
        self.clock.advance(0.001)
        return self.router.offer(ticket, self.now, again=again)

    def settle(self) -> list[tuple[Ticket, Placement]]:
        self.clock.advance(0.001)
        return self.router.settle(self.now)


def here(placement: Placement | None) -> Here:
    assert isinstance(placement, Here)
    return placement


def there(placement: Placement | None) -> There:
    assert isinstance(placement, There)
    return placement

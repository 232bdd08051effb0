"""Hosts as candidates: what importing a replica would take there."""

from __future__ import annotations

import random

import pytest

from viiwork_core import NoOptions, Query, Score
from viiwork_core.builtin.policies import LeastBusy
from viiwork_core.builtin.priced import CacheAware
from viiwork_core.engines.slots import Room, SlotBook
from viiwork_core.engines.states import BackendState, BackendView
from viiwork_core.mesh.capacity import PeerView
from viiwork_core.mesh.member import Member
from viiwork_core.mesh.report import CapacityReport, HeadReport, ModelReport, ScoreReport
from viiwork_core.routing.backends import LocalBackends
from viiwork_core.routing.candidates import Candidates
from viiwork_core.routing.heads import Conversations
from viiwork_core.testing.fake_clock import FakeClock

SESSION = "5e" * 16
QUERY = Query("m", SESSION, 10_500, continues=True)
BACKEND = BackendView("m/0", "m", "e", BackendState.HEALTHY, incarnation=1, slots=2)
ROOM = Room(slots=2, busy=0, free=2, backends=1, healthy_backends=1, context=None)


def view(node: str, kind: str | None, import_ms_per_1k: float | None) -> tuple[PeerView, ModelReport]:
    head = HeadReport("0" * 16, SESSION, 10_000, 4, kind=kind) if kind else None  # type: ignore[arg-type]
    about = ModelReport(
        "m",
        "e",
        2,
        0,
        0,
        1,
        1,
        score=ScoreReport(1.0, 1000.0),
        import_ms_per_1k=import_ms_per_1k,
        heads=(head,) if head else (),
    )
    member = Member(node=node, node_id=f"{node}1", host="127.0.0.1", api_port=1)
    return PeerView(member, CapacityReport(node, f"{node}1", "1", (about,)), 1.0, 0.0), about


def local() -> LocalBackends:
    return LocalBackends(SlotBook(FakeClock()), LeastBusy(NoOptions()), random.Random(1))


def there(kind: str | None, import_ms_per_1k: float | None) -> tuple[int | None, float | None]:
    conversations, (told, about) = Conversations(), view("b", kind, import_ms_per_1k)
    conversations.report("b", [("m", about.heads)], told.asked_at)
    found = Candidates(local(), conversations).there(told, about, QUERY, 2)
    return found.replica_tokens, found.import_ms


@pytest.mark.parametrize(
    ("kind", "rate", "known"),
    [
        ("replica", 60.0, (10_000, 600.0)),
        ("replica", None, (10_000, None)),
        ("live", 60.0, (None, None)),
        (None, 60.0, (None, None)),
    ],
)
def test_a_peer_s_import_has_a_price_once_one_was_measured_there(
    kind: str | None, rate: float | None, known: tuple[int | None, float | None]
) -> None:
    assert there(kind, rate) == known


def test_this_node_s_own_replica_has_one_too() -> None:
    candidates = Candidates(
        local(),
        score_of=lambda _: Score(1.0, 1000.0),
        replica_of=lambda model, session: 10_000 if (model, session) == ("m", SESSION) else None,
        import_of=lambda _: 60.0,
    )
    here = candidates.here("a", ROOM, [(BACKEND, 2)], QUERY)
    assert (here.replica_tokens, here.import_ms) == (10_000, 600.0)
    cold = candidates.there(*view("b", None, None), QUERY, 2)
    ranked = CacheAware(NoOptions()).rank(QUERY, [cold, here], random.Random(1))
    assert ranked[0] == "a", "10 s of reading against 0.6 s of importing"

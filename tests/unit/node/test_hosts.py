"""Where models are served: totals and contexts from fresh reports only."""

from __future__ import annotations

from typing import Any

import pytest

from viiwork_core.mesh.capacity import PeerView
from viiwork_core.mesh.member import Member
from viiwork_core.mesh.report import CapacityReport, HeadReport, ModelReport
from viiwork_core.node.hosts import MOST_MODELS, Hosts, fleet_entry, hosts_of, record_of, served_context

NOW = 100.0


def about(name: str = "m", *, slots: int = 2, busy: int = 0, ctx: int | None = 4096, **more: Any) -> ModelReport:
    healthy = 1 if slots else 0
    return ModelReport(
        name=name,
        engine="fake",
        slots=slots,
        busy=busy,
        queued=1,
        backends=1,
        healthy_backends=healthy,
        ctx=ctx,
        **more,
    )


def peer(node: str, *models: ModelReport, age: float = 0.5) -> PeerView:
    report = CapacityReport(node=node, node_id=f"{node}-1", ver="1", models=models)
    return PeerView(Member(node=node, node_id=f"{node}-1", host="127.0.0.2", api_port=81), report, NOW - age, 1.0)


def hosts(*peers: PeerView, own: tuple[ModelReport, ...] = (), stale: str = "") -> Hosts:
    report = CapacityReport(node="here", node_id="here-1", ver="1", models=own)
    fresh = {view.member.node for view in peers} - {stale}
    return hosts_of(report, None, peers, fresh, NOW)


def test_totals_are_of_fresh_reports_and_a_stale_host_is_named_without_figures() -> None:
    found = hosts(
        peer("a", about(busy=1)), peer("b", about(slots=4, ctx=1024), age=9), own=(about(ctx=8192),), stale="b"
    )
    assert fleet_entry("m", found["m"]) == {
        "name": "m",
        "engine": "fake",
        "slots": 4,
        "busy": 1,
        "free": 3,
        "queued": 2,
        "ctx": 4096,
        "hosts": [
            {"node": "here", "slots": 2, "busy": 0, "free": 2, "ctx": 8192, "age_ms": 0},
            {"node": "a", "api": "127.0.0.2:81", "slots": 2, "busy": 1, "free": 1, "ctx": 4096, "age_ms": 500},
            {"node": "b", "api": "127.0.0.2:81", "age_ms": 9000, "stale": True},
        ],
    }


@pytest.mark.parametrize(
    ("others", "context"),
    [
        ([about(ctx=2048)], 2048),
        ([about(ctx=2048, slots=0)], 4096),
        ([about(ctx=None)], 4096),
        ([about(ctx=9999)], 4096),
    ],
)
def test_the_context_is_the_smallest_of_those_that_have_slots(others: list[ModelReport], context: int) -> None:
    """One that drains, or has not started yet, says nothing about what is served."""
    found = hosts(*(peer(f"p{at}", one) for at, one in enumerate(others)), own=(about(),))
    assert served_context(found["m"]) == context
    assert record_of("m", found["m"], "here").context == context
    assert fleet_entry("m", found["m"])["ctx"] == context


def test_a_stale_reports_context_does_not_count_and_its_model_is_listed() -> None:
    found = hosts(peer("a", about(ctx=512)), stale="a")
    record = record_of("m", found["m"], "here")
    assert (record.owned_by, record.context) == ("peer", None)
    entry = fleet_entry("m", found["m"])
    assert (entry["slots"], "ctx" in entry) == (0, False)


def test_before_anybody_serves_it_this_nodes_configuration_counts() -> None:
    found = hosts(own=(about(slots=0, ctx=8192),))
    record = record_of("m", found["m"], "here")
    assert (record.owned_by, record.context) == ("local", 8192)


def test_what_members_name_is_bounded_and_own_models_come_first() -> None:
    crowd = [peer(f"p{one}", *(about(f"m{one}-{at}") for at in range(1000))) for one in range(10)]
    found = hosts(*crowd, own=(about("mine"),))
    assert len(found) == MOST_MODELS
    assert "mine" in found
    assert "m0-999" in found


def test_conversations_are_for_members_only() -> None:
    head = HeadReport(link="0" * 16, session="0" * 32, tokens=1, turn=1)
    entry = fleet_entry("m", hosts(peer("a", about(heads=(head,))))["m"])
    assert "heads" not in str(entry)
    assert "0" * 16 not in str(entry)

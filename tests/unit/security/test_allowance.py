"""The daily allowance: counted here and at other nodes, until midnight UTC."""

from __future__ import annotations

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given

from viiwork_core.errors import AllowanceSpent
from viiwork_core.mesh.report import CapacityReport, SpentReport, encode_report
from viiwork_core.security.allowance import DAY_S, MAX_DAYS, MAX_NODES, MAX_TOKENS, Allowance, Spent
from viiwork_core.security.keys import ApiKey
from viiwork_core.testing.fake_clock import FakeClock

KEY = ApiKey("a", b"", daily_tokens=100)


def at(clock: FakeClock) -> tuple[Allowance, int]:
    allowance = Allowance(clock)
    return allowance, allowance.own()[0]


def set_to(clock: FakeClock, wall: float) -> None:
    clock.step_wall(wall - clock.wall())


def written(spent: Spent) -> Spent:
    """As it is read from the disk."""
    return msgspec.json.decode(msgspec.json.encode(spent), type=Spent)


def test_a_key_may_ask_until_its_tokens_are_used() -> None:
    allowance, _ = at(FakeClock())
    allowance.spend("a", 99)
    allowance.check(KEY)
    allowance.spend("a", 1)
    with pytest.raises(AllowanceSpent, match="has used its 100 tokens of today"):
        allowance.check(KEY)
    allowance.check(ApiKey("a", b""))
    allowance.check(ApiKey("b", b"", daily_tokens=1))


def test_it_is_told_when_midnight_comes_and_then_all_is_new() -> None:
    clock = FakeClock()
    allowance, _ = at(clock)
    allowance.spend("a", 100)
    with pytest.raises(AllowanceSpent) as error:
        allowance.check(KEY)
    left = DAY_S - clock.wall() % DAY_S
    assert error.value.retry_after is not None
    assert left <= error.value.retry_after < left + 1
    clock.advance(error.value.retry_after)
    allowance.check(KEY)
    assert (allowance.used("a"), allowance.own()[1]) == (0, {})


def test_what_other_nodes_tell_is_added_once() -> None:
    allowance, day = at(FakeClock())
    allowance.spend("a", 10)
    for told in (20, 20, 35, 5):
        allowance.heard("there", day, {"a": told})
    allowance.heard("elsewhere", day, {"a": 1, "b": 7})
    allowance.heard("there", day - 1, {"a": 1000})
    allowance.heard("there", day + 1, {"a": 1000})
    assert (allowance.used("a"), allowance.used("b")) == (46, 7)
    assert allowance.own() == (day, {"a": 10}), "others are told of this node's own alone"


def test_too_many_nodes_are_not_kept() -> None:
    allowance, day = at(FakeClock())
    for number in range(MAX_NODES + 10):
        allowance.heard(f"n{number}", day, {"a": 1})
    assert allowance.used("a") == MAX_NODES


def test_a_restart_takes_it_up_on_the_same_day_alone() -> None:
    clock = FakeClock()
    before, day = at(clock)
    before.spend("a", 10)
    before.heard("there", day, {"a": 5})
    kept = before.spent()
    after = Allowance(clock)
    after.restore(kept)
    after.heard("there", day, {"a": 6})
    assert (after.used("a"), after.own()[1]) == (16, {"a": 10})
    clock.advance(DAY_S)
    late = Allowance(clock)
    late.restore(kept)
    assert late.used("a") == 0


def test_a_clock_that_is_set_back_and_on_again_forgets_nothing() -> None:
    clock = FakeClock()
    allowance, day = at(clock)
    allowance.spend("a", 100)
    allowance.heard("there", day, {"a": 7})
    set_to(clock, 0.0)
    assert allowance.used("a") == 0
    allowance.spend("a", 3)
    set_to(clock, day * DAY_S + 5.0)
    assert (allowance.used("a"), allowance.own()) == (107, (day, {"a": 100}))
    with pytest.raises(AllowanceSpent):
        allowance.check(KEY)


def test_a_node_that_starts_before_it_knows_the_date_forgets_nothing() -> None:
    before, day = at(FakeClock())
    before.spend("a", 100)
    before.heard("there", day, {"a": 7})
    clock = FakeClock(wall=0.0)
    early = Allowance(clock)
    early.restore(written(before.spent()))
    # And once more, before it was told the date.
    again = Allowance(clock)
    again.restore(written(early.spent()))
    assert again.used("a") == 0
    set_to(clock, day * DAY_S + 5.0)
    assert (again.used("a"), again.own()) == (107, (day, {"a": 100}))


def test_few_days_are_kept() -> None:
    clock = FakeClock()
    allowance, day = at(clock)
    for number in range(MAX_DAYS + 2):
        set_to(clock, (day + number) * DAY_S + 1.0)
        allowance.spend("a", 1)
    kept = allowance.spent()
    assert (kept.day, len(kept.past)) == (day + MAX_DAYS + 1, MAX_DAYS - 1)
    set_to(clock, day * DAY_S + 1.0)
    assert allowance.used("a") == 0


@pytest.mark.parametrize("told", [-5, -(10**30), 10**30])
def test_a_figure_that_cannot_be_does_not_reach_other_nodes(told: int) -> None:
    allowance, day = at(FakeClock())
    allowance.spend("a", 10)
    allowance.spend("a", told)
    allowance.spend("a", 1)
    count = allowance.own()[1]["a"]
    assert count == (11 if told < 0 else MAX_TOKENS)
    report = CapacityReport("n", "id", "1", spent=SpentReport(day, dict(allowance.own()[1])))
    assert msgspec.json.decode(encode_report(report), type=CapacityReport) == report


@given(told=st.lists(st.tuples(st.sampled_from("xyz"), st.sampled_from("ab"), st.integers(0, 50)), max_size=30))
def test_the_order_in_which_nodes_are_heard_does_not_matter(told: list[tuple[str, str, int]]) -> None:
    def heard(order: list[tuple[str, str, int]]) -> tuple[int, int]:
        allowance, day = at(FakeClock())
        for node, key, count in order:
            allowance.heard(node, day, {key: count})
        return allowance.used("a"), allowance.used("b")

    most = {(node, key): max(count for n, k, count in told if (n, k) == (node, key)) for node, key, _ in told}
    expected = tuple(sum(count for (_, key), count in most.items() if key == name) for name in "ab")
    assert heard(told) == heard(told[::-1]) == expected

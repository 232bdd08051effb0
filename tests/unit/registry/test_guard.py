"""The door to plugin code."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence

import anyio
import pytest

from viiwork_core.builtin.policies import LeastBusy
from viiwork_core.contracts.options import NoOptions
from viiwork_core.contracts.policy import Candidate, Outcome, Policy, Query
from viiwork_core.errors import ConfigError, EngineUnreachable, PluginError
from viiwork_core.registry.guard import STRIKES, Guard, GuardedPolicy, attempt


class Time:
    """A clock that stands still until it is moved."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now


class Watched:
    """A guard whose strikes are kept."""

    def __init__(self) -> None:
        self.time = Time()
        self.strikes: list[str] = []
        self.guard = Guard("engine acme", clock=self.time, on_strike=self.strikes.append)

    def call(self, make: Callable[[], Awaitable[object]], deadline_s: float = 60.0) -> object:
        return asyncio.run(self.guard.call("probe", deadline_s, make))

    def fail(self, times: int = 1) -> None:
        for _ in range(times):
            with pytest.raises(PluginError):
                self.call(raising(RuntimeError("odd")))


def raising(error: BaseException) -> Callable[[], Awaitable[object]]:
    async def make() -> object:
        raise error

    return make


async def fine() -> object:
    return 7


async def endless() -> object:
    await asyncio.Event().wait()
    return None


def test_a_result_passes() -> None:
    watched = Watched()
    assert watched.call(fine) == 7
    assert watched.strikes == []


def test_errors_of_the_contract_pass_unchanged_and_are_no_strike() -> None:
    watched, error = Watched(), EngineUnreachable("nobody there")
    for _ in range(STRIKES + 1):
        with pytest.raises(EngineUnreachable) as caught:
            watched.call(raising(error))
        assert caught.value is error
    assert watched.strikes == []


def test_other_errors_become_plugin_errors_and_strikes() -> None:
    watched = Watched()
    with pytest.raises(PluginError) as caught:
        watched.call(raising(ZeroDivisionError("by\nzero")))
    assert caught.value.message == "engine acme: probe failed: ZeroDivisionError: by zero"
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert watched.strikes == [caught.value.message]


def test_an_error_before_the_coroutine_exists_is_caught_too() -> None:
    def make() -> Awaitable[object]:
        raise TypeError("no coroutine")

    with pytest.raises(PluginError, match="no coroutine"):
        Watched().call(make)


def test_a_missed_deadline_is_a_strike_and_ends_the_call() -> None:
    watched, ended = Watched(), list[str]()

    async def slow() -> object:
        try:
            return await endless()
        finally:
            ended.append("ended")

    with pytest.raises(PluginError, match=r"probe took over 0.01 s"):
        watched.call(slow, deadline_s=0.01)
    assert ended == ["ended"]
    assert len(watched.strikes) == 1


def test_the_plugins_own_timeout_is_not_taken_for_ours() -> None:
    with pytest.raises(PluginError, match="probe failed: TimeoutError"):
        Watched().call(raising(TimeoutError()))


def test_cancellation_passes_and_is_no_strike() -> None:
    watched = Watched()

    async def run() -> None:
        task = asyncio.create_task(watched.guard.call("probe", 60.0, endless))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert task.cancelled()

    asyncio.run(run())
    assert watched.strikes == []


def test_an_outer_scope_cancels_through_the_guard() -> None:
    watched = Watched()

    async def run() -> bool:
        with anyio.move_on_after(0.01) as scope:
            await watched.guard.call("probe", 60.0, endless)
        return scope.cancelled_caught

    assert asyncio.run(run())
    assert watched.strikes == []


def test_a_cancellation_that_nobody_asked_for_is_the_plugins_fault() -> None:
    with pytest.raises(PluginError, match="cancelled itself"):
        Watched().call(raising(asyncio.CancelledError()))


def test_five_failures_in_a_row_bench_it() -> None:
    watched = Watched()
    watched.fail(STRIKES)
    with pytest.raises(PluginError, match="benched after 5 failures in a row, tried again in 30 s"):
        watched.call(fine)
    assert len(watched.strikes) == STRIKES


def test_a_success_between_failures_starts_the_count_again() -> None:
    watched = Watched()
    watched.fail(STRIKES - 1)
    watched.call(fine)
    watched.fail(STRIKES - 1)
    assert watched.call(fine) == 7


def test_after_the_backoff_one_trial_decides() -> None:
    watched = Watched()
    watched.fail(STRIKES)
    watched.time.now += 30
    watched.fail()
    watched.time.now += 59
    with pytest.raises(PluginError, match="tried again in 1 s"):
        watched.call(fine)
    watched.time.now += 1
    assert watched.call(fine) == 7
    watched.fail(STRIKES - 1)
    assert watched.call(fine) == 7


def test_only_one_caller_makes_the_trial() -> None:
    watched = Watched()
    watched.fail(STRIKES)
    watched.time.now += 30

    async def run() -> None:
        gate = asyncio.Event()
        trial = asyncio.create_task(watched.guard.call("probe", 60.0, gate.wait))
        await asyncio.sleep(0)
        with pytest.raises(PluginError, match="benched"):
            await watched.guard.call("probe", 60.0, fine)
        gate.set()
        assert await trial is True
        assert await watched.guard.call("probe", 60.0, fine) == 7

    asyncio.run(run())


def test_attempt_maps_what_synchronous_plugin_code_raises() -> None:
    assert attempt("import", lambda: 3) == 3
    with pytest.raises(PluginError, match="import failed: ZeroDivisionError"):
        attempt("import", lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        attempt("import", lambda: 1 // 0, passing=(ZeroDivisionError,))
    with pytest.raises(ConfigError):
        attempt("import", lambda: (_ for _ in ()).throw(ConfigError("x")))


QUERY = Query("m", None, 100)
PLACES = [Candidate("a", False, 4, 1), Candidate("b", False, 4, 3), Candidate("c", False, 4, 2)]
BY_ROOM = ["b", "c", "a"]


class Scripted(Policy):
    """Answers whatever the test says."""

    name = "scripted"

    def __init__(self, answer: Callable[[], object]) -> None:
        super().__init__(NoOptions())
        self.answer = answer
        self.calls = 0

    def rank(self, query: Query, candidates: Sequence[Candidate], rng: random.Random) -> Sequence[str]:
        self.calls += 1
        return self.answer()  # type: ignore[return-value]  # junk on purpose

    def observe(self, outcome: Outcome) -> None:
        self.answer()


def guarded(answer: Callable[[], object], time: Time | None = None) -> tuple[GuardedPolicy, Scripted, list[str]]:
    strikes, policy = list[str](), Scripted(answer)
    return GuardedPolicy(policy, clock=time or Time(), on_strike=strikes.append), policy, strikes


def rank(policy: Policy) -> list[str]:
    return list(policy.rank(QUERY, PLACES, random.Random(1)))


@pytest.mark.parametrize("answer", [["a", "c", "b"], ("c",), []])
def test_a_valid_ranking_is_used(answer: Sequence[str]) -> None:
    policy, _, strikes = guarded(lambda: answer)
    assert rank(policy) == list(answer)
    assert strikes == []


@pytest.mark.parametrize("answer", [None, 5, "abc", ["x"], ["a", "a"], [1], [["a"]], {"a": 1}, iter("abc")])
def test_junk_falls_back_to_least_busy_and_is_a_strike(answer: object) -> None:
    policy, _, strikes = guarded(lambda: answer)
    assert rank(policy) == BY_ROOM
    assert len(strikes) == 1
    assert strikes[0].startswith("policy scripted: rank failed")


def test_a_raising_policy_is_benched_and_comes_back() -> None:
    time, answers = Time(), {"error": True}

    def answer() -> object:
        if answers["error"]:
            raise RuntimeError("odd")
        return ["a"]

    policy, inner, strikes = guarded(answer, time)
    for _ in range(STRIKES + 3):
        assert rank(policy) == BY_ROOM
    assert (inner.calls, len(strikes)) == (STRIKES, STRIKES)
    answers["error"] = False
    time.now += 30
    assert rank(policy) == ["a"]


def test_a_late_ranking_is_used_and_the_strike_noted() -> None:
    time = Time()

    def answer() -> object:
        time.now += 0.06
        return ["a"]

    policy, _, strikes = guarded(answer, time)
    assert rank(policy) == ["a"]
    assert strikes == ["policy scripted: rank took 60 ms of 50 ms"]


def test_a_raising_observe_goes_no_further() -> None:
    policy, _, strikes = guarded(lambda: 1 // 0)
    policy.observe(Outcome("m", "a", None, 200))
    assert strikes == ["policy scripted: observe failed: ZeroDivisionError: integer division or modulo by zero"]


def test_the_fallback_is_the_built_in() -> None:
    policy, _, _ = guarded(lambda: None)
    assert rank(policy) == list(LeastBusy(NoOptions()).rank(QUERY, PLACES, random.Random(1)))

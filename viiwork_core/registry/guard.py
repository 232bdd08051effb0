"""The only door to plugin code: a deadline, errors mapped to ours, and a bench for plugins that keep failing."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import anyio

from viiwork_core.builtin.policies import LeastBusy
from viiwork_core.clock import Clock
from viiwork_core.contracts.options import NoOptions
from viiwork_core.contracts.policy import Candidate, Outcome, Policy, Query
from viiwork_core.errors import PluginError, ViiworkError

T = TypeVar("T")

STRIKES = 5
"""Failures in a row after which a plugin object is benched."""

RANK_DEADLINE_S = 0.05
_FIRST_BENCH_S = 30.0
_LONGEST_BENCH_S = 600.0
_MAX_REASON = 300


def _ignore(message: str) -> None:
    del message


def reason(error: BaseException) -> str:
    """A foreign exception as part of one sentence."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:_MAX_REASON] if text else type(error).__name__


def attempt(what: str, make: Callable[[], T], *, passing: tuple[type[Exception], ...] = ()) -> T:
    """Call plugin code that is synchronous and runs once, such as its import or its options' validators.

    ViiworkErrors and `passing` go through; anything else becomes a PluginError: "WHAT failed: why".
    """
    through: tuple[type[Exception], ...] = (ViiworkError, *passing)
    try:
        return make()
    except through:
        raise
    except (Exception, SystemExit) as error:
        raise PluginError(f"{what} failed: {reason(error)}") from error


class Strikes:
    """Counts one plugin object's failures in a row. Five bench it; after a while one call is let through on trial."""

    def __init__(self, plugin: str, clock: Clock, on_strike: Callable[[str], None]) -> None:
        self._plugin = plugin
        self._clock = clock
        self._on_strike = on_strike
        self._count = 0
        self._trials = 0
        self._until = 0.0

    def benched(self) -> bool:
        """Whether it must not be called now. False past the backoff, to one caller only: the trial."""
        if self._count < STRIKES:
            return False
        if self._clock.monotonic() < self._until:
            return True
        self._trials += 1
        self._bench()
        return False

    def strike(self, what: str) -> str:
        """Note a failure, and return it as a sentence that names the plugin."""
        self._count += 1
        if self._count >= STRIKES:
            self._bench()
        message = f"{self._plugin}: {what}"
        self._on_strike(message)
        return message

    def clear(self) -> None:
        """Note a call that went well."""
        self._count = self._trials = 0

    def refusal(self) -> PluginError:
        """What a caller is told while the plugin sits on the bench."""
        wait = max(0.0, self._until - self._clock.monotonic())
        return PluginError(
            f"{self._plugin}: benched after {STRIKES} failures in a row, tried again in {wait:.0f} s",
            remedy="see the log for the failures; update or remove the plugin",
        )

    def _bench(self) -> None:
        backoff = min(_FIRST_BENCH_S * 2 ** min(self._trials, 10), _LONGEST_BENCH_S)
        self._until = self._clock.monotonic() + backoff


class Guard:
    """Calls the coroutines of one plugin object, on one event loop."""

    def __init__(self, plugin: str, *, clock: Clock, on_strike: Callable[[str], None] = _ignore) -> None:
        self._strikes = Strikes(plugin, clock, on_strike)

    async def call(self, what: str, deadline_s: float, make: Callable[[], Awaitable[T]]) -> T:
        """Await what `make` returns, for `deadline_s` seconds at most; `what` names the call in errors.

        ViiworkErrors pass: raising them is part of the contracts. Any other exception and a missed deadline are a
        strike and a PluginError; a benched plugin is not called at all. The caller's cancellation always passes.
        """
        if self._strikes.benched():
            raise self._strikes.refusal()
        # move_on_after, since fail_after's TimeoutError cannot be told from one of the plugin's own.
        with anyio.move_on_after(deadline_s) as scope:
            result = await self._mapped(what, make)
        if scope.cancelled_caught:
            raise PluginError(self._strikes.strike(f"{what} took over {deadline_s:g} s"))
        self._strikes.clear()
        return result

    async def _mapped(self, what: str, make: Callable[[], Awaitable[T]]) -> T:
        try:
            return await make()
        except ViiworkError:
            self._strikes.clear()
            raise
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # Nobody cancelled this task: the plugin leaked the end of a task of its own.
            raise PluginError(self._strikes.strike(f"{what} cancelled itself")) from error
        except (Exception, SystemExit) as error:
            raise PluginError(self._strikes.strike(f"{what} failed: {reason(error)}")) from error


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a ranking is as it is."""

    rule: str
    """Empty: the policy does not say."""

    prices: Mapping[str, float]


class GuardedPolicy(Policy):
    """A policy that always ranks: where the plugin's own fails or is benched, least_busy stands in."""

    name = "guarded"

    def __init__(self, policy: Policy, *, clock: Clock, on_strike: Callable[[str], None] = _ignore) -> None:
        super().__init__(policy.options)
        self._policy = policy
        self._clock = clock
        self._strikes = Strikes(f"policy {policy.name}", clock, on_strike)
        self._fallback = LeastBusy(NoOptions())
        self.ranked_by = policy.name
        """The policy that made the last ranking: the plugin's own, or the one that stands in."""

    def rank(self, query: Query, candidates: Sequence[Candidate], rng: random.Random) -> Sequence[str]:
        """As the policy ranks, if what it says is a ranking; late is still right, and a strike."""
        if self._strikes.benched():
            return self._stand_in(query, candidates, rng)
        started = self._clock.monotonic()
        try:
            ranking = _checked(self._policy.rank(query, candidates, rng), candidates)
        except (Exception, SystemExit) as error:  # noqa: BLE001  # plugin code
            self._strikes.strike(f"rank failed: {reason(error)}")
            return self._stand_in(query, candidates, rng)
        self.ranked_by = self._policy.name
        if (took := self._clock.monotonic() - started) > RANK_DEADLINE_S:
            self._strikes.strike(f"rank took {took * 1000:.0f} ms of {RANK_DEADLINE_S * 1000:.0f} ms")
        else:
            self._strikes.clear()
        return ranking

    def _stand_in(self, query: Query, candidates: Sequence[Candidate], rng: random.Random) -> Sequence[str]:
        self.ranked_by = self._fallback.name
        return self._fallback.rank(query, candidates, rng)

    def why(self, by: str, query: Query, candidates: Sequence[Candidate], first: str) -> Reason:
        """Why the policy `by` ranked `first` first, as far as it says."""
        policy = self._policy if by == self._policy.name else self._fallback
        try:
            rule, prices = policy.explain(query, candidates, first), policy.prices(query, candidates)
            known = {place.id: float(prices[place.id]) for place in candidates if place.id in prices}
            # An endless price is one way to say "last", and cannot be written as JSON.
            finite = {id_: price for id_, price in known.items() if math.isfinite(price)}
            return Reason(str(rule)[:_MAX_REASON], finite)
        except (Exception, SystemExit) as error:  # noqa: BLE001  # plugin code
            # No strike: whoever may ask could bench a policy that ranks well.
            return Reason(f"it could not say: {reason(error)}", {})

    @property
    def learns(self) -> bool:
        """Whether the policy makes anything of what `observe` tells it."""
        return type(self._policy).observe is not Policy.observe

    def observe(self, outcome: Outcome) -> None:
        """Tell the policy; what it raises is a strike and goes no further."""
        try:
            self._policy.observe(outcome)
        except (Exception, SystemExit) as error:  # noqa: BLE001  # plugin code
            self._strikes.strike(f"observe failed: {reason(error)}")


def _checked(ranking: object, candidates: Sequence[Candidate]) -> tuple[str, ...]:
    """The ranking, if it is one. Raises PluginError."""
    if isinstance(ranking, str) or not isinstance(ranking, Sequence):
        raise PluginError(f"a {type(ranking).__name__} is no ranking")
    ids = tuple(ranking)
    if len(candidates) == 1 and ids == (candidates[0].id,):
        return ids
    known = {candidate.id for candidate in candidates}
    if any(not isinstance(entry, str) or entry not in known for entry in ids):
        raise PluginError("the ranking names a place that is no candidate")
    if len(set(ids)) != len(ids):
        raise PluginError("the ranking names a place twice")
    return ids

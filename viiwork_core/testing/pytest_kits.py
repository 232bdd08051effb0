"""The kits as classes for pytest: derive from one, say in the fixture `case` what is tried, and each clause is a test.

    class TestMyPolicy(PolicyKit):
        @pytest.fixture
        def case(self) -> PolicyCase:
            return PolicyCase(MyPolicy, MyOptions(...))

The first test of a class checks all clauses, so that an engine is started once; the others look up what it found.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import pytest

from viiwork_core.testing.cache_kit import CACHE_CLAUSES, CacheCase, examine_cache
from viiwork_core.testing.clauses import Clause, Verdict
from viiwork_core.testing.discovery_kit import DISCOVERY_CLAUSES, DiscoveryCase, examine_discovery
from viiwork_core.testing.engine_kit import ENGINE_CLAUSES, EngineCase, examine_engine
from viiwork_core.testing.listener_kit import LISTENER_CLAUSES, ListenerCase, examine_listener
from viiwork_core.testing.policy_kit import POLICY_CLAUSES, PolicyCase, examine_policy

__all__ = ["CacheKit", "DiscoveryKit", "EngineKit", "ListenerKit", "PolicyKit"]

_VERDICTS = pytest.StashKey[Mapping[int, Verdict]]()


def _title(clause: object) -> str:
    assert isinstance(clause, Clause)
    return f"{clause.number}: {clause.rule}"


def _settle(verdict: Verdict) -> None:
    if verdict.outcome == "not checked":
        pytest.skip(verdict.problem)
    assert verdict.outcome == "pass", verdict.problem


class _Kit:
    """What they have in common."""

    @abstractmethod
    async def examine(self, case: Any) -> list[Verdict]:
        """A verdict on each clause."""

    @pytest.fixture
    def verdicts(self, request: pytest.FixtureRequest) -> Mapping[int, Verdict]:
        """By the clauses' numbers; found out once for a class."""
        node = request.node.getparent(pytest.Class)
        if _VERDICTS not in node.stash:
            found = asyncio.run(self.examine(request.getfixturevalue("case")))
            node.stash[_VERDICTS] = {one.clause: one for one in found}
        verdicts: Mapping[int, Verdict] = node.stash[_VERDICTS]
        return verdicts


class EngineKit(_Kit):
    """Tests an engine. The fixture `case` returns an EngineCase."""

    @pytest.fixture
    def case(self) -> EngineCase:
        """To be overridden."""
        raise NotImplementedError("the test class has no fixture `case`")

    async def examine(self, case: EngineCase) -> list[Verdict]:
        return await examine_engine(case)

    @pytest.mark.parametrize("clause", ENGINE_CLAUSES, ids=_title)
    def test_clause(self, clause: Clause[EngineCase], verdicts: Mapping[int, Verdict]) -> None:
        _settle(verdicts[clause.number])


class CacheKit(_Kit):
    """Tests a cache transfer. The fixture `case` returns a CacheCase."""

    @pytest.fixture
    def case(self) -> CacheCase:
        """To be overridden."""
        raise NotImplementedError("the test class has no fixture `case`")

    async def examine(self, case: CacheCase) -> list[Verdict]:
        return await examine_cache(case)

    @pytest.mark.parametrize("clause", CACHE_CLAUSES, ids=_title)
    def test_clause(self, clause: Clause[CacheCase], verdicts: Mapping[int, Verdict]) -> None:
        _settle(verdicts[clause.number])


class DiscoveryKit(_Kit):
    """Tests a source of sightings. The fixture `case` returns a DiscoveryCase."""

    @pytest.fixture
    def case(self) -> DiscoveryCase:
        """To be overridden."""
        raise NotImplementedError("the test class has no fixture `case`")

    async def examine(self, case: DiscoveryCase) -> list[Verdict]:
        return await examine_discovery(case)

    @pytest.mark.parametrize("clause", DISCOVERY_CLAUSES, ids=_title)
    def test_clause(self, clause: Clause[DiscoveryCase], verdicts: Mapping[int, Verdict]) -> None:
        _settle(verdicts[clause.number])


class ListenerKit(_Kit):
    """Tests a listener. The fixture `case` returns a ListenerCase."""

    @pytest.fixture
    def case(self) -> ListenerCase:
        """To be overridden."""
        raise NotImplementedError("the test class has no fixture `case`")

    async def examine(self, case: ListenerCase) -> list[Verdict]:
        return await examine_listener(case)

    @pytest.mark.parametrize("clause", LISTENER_CLAUSES, ids=_title)
    def test_clause(self, clause: Clause[ListenerCase], verdicts: Mapping[int, Verdict]) -> None:
        _settle(verdicts[clause.number])


class PolicyKit(_Kit):
    """Tests a routing policy. The fixture `case` returns a PolicyCase."""

    @pytest.fixture
    def case(self) -> PolicyCase:
        """To be overridden."""
        raise NotImplementedError("the test class has no fixture `case`")

    async def examine(self, case: PolicyCase) -> list[Verdict]:
        return await examine_policy(case)

    @pytest.mark.parametrize("clause", POLICY_CLAUSES, ids=_title)
    def test_clause(self, clause: Clause[PolicyCase], verdicts: Mapping[int, Verdict]) -> None:
        _settle(verdicts[clause.number])

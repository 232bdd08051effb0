"""Where a session's caches go."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from viiwork_core.clock import SystemClock
from viiwork_core.mesh.member import Member
from viiwork_core.mesh.report import KvReport
from viiwork_core.node import targets as module
from viiwork_core.node.targets import Targets


class Ranking:
    """A router that knows nothing but an order."""

    def __init__(self, *names: str) -> None:
        self.names = names
        self.prints: dict[str, str] = {}

    def spill_order(self, _: object, __: float) -> list[Any]:
        return [self._view(name) for name in self.names]

    def _view(self, name: str) -> Any:
        models = [SimpleNamespace(name="m", kv=KvReport("pair", self.prints.get(name, "p")))]
        member = Member(node=name, node_id=f"id-{name}", host="127.0.0.1", api_port=1)
        return SimpleNamespace(member=member, report=SimpleNamespace(models=models))


def chosen(targets: Targets, session: str = "s") -> str | None:
    member = targets.choose("m", session, "pair", "p")
    return member.node if member else None


def targets_of(ranking: Ranking) -> Targets:
    return Targets(lambda: cast(Any, ranking), SystemClock())


def test_the_first_choice_is_kept_while_it_is_there() -> None:
    ranking = Ranking("b", "c")
    targets = targets_of(ranking)
    assert chosen(targets) == "b"
    ranking.names = ("c", "b")
    assert chosen(targets) == "b"
    assert chosen(targets, "another session") == "c"
    ranking.names = ("c",)
    assert chosen(targets) == "c"
    ranking.names = ("b", "c")
    assert chosen(targets) == "c", "the new choice is kept as well"
    ranking.names = ()
    assert chosen(targets) is None


def test_only_where_the_caches_fit() -> None:
    ranking = Ranking("b", "c")
    ranking.prints = {"b": "other"}
    targets = targets_of(ranking)
    assert chosen(targets) == "c"
    ranking.prints = {"c": "other"}
    assert chosen(targets) == "b"
    assert targets.choose("m", "s", "another group", "p") is None


def test_sessions_that_are_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_SESSIONS", 2)
    ranking = Ranking("b", "c")
    targets = targets_of(ranking)
    for session in ("1", "2", "1", "3"):
        chosen(targets, session)
    ranking.names = ("c", "b")
    assert [chosen(targets, session) for session in ("1", "3", "2")] == ["b", "b", "c"]

"""Of two processes with one node's name the younger ends, whoever looks first."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from structlog.testing import capture_logs

from viiwork_core.errors import BackendFailed, ViiworkError
from viiwork_core.mesh.greeting import Greeting
from viiwork_core.mesh.member import Member
from viiwork_core.mesh.namesake import YOUNG_S, Namesakes

OTHER = Member(node="gpu", node_id="m", host="127.0.0.2", api_port=8086)


class Mesh:
    """A gossip with one namesake, and a greeter that reaches it."""

    def __init__(self, *namesakes: Member, answers: Callable[[], Greeting]) -> None:
        self.found, self.answers, self.asked = namesakes, answers, list[str]()

    def namesakes(self) -> tuple[Member, ...]:
        return self.found

    async def greet(self, api: str) -> Greeting:
        self.asked.append(api)
        return self.answers()


def looked(mesh: Mesh, *, age: float, node_id: str = "a", times: int = 1) -> tuple[list[bool], list[ViiworkError]]:
    refusals: list[ViiworkError] = []
    namesakes = Namesakes(
        mesh,  # type: ignore[arg-type]  # as much of a gossip as is needed
        mesh,  # type: ignore[arg-type]  # and of a greeter
        node_id=node_id,
        age_s=lambda: age,
        refuse=refusals.append,
    )

    async def run() -> list[bool]:
        return [await namesakes.step() for _ in range(times)]

    return asyncio.run(run()), refusals


def says(age: float, node_id: str = "m") -> Callable[[], Greeting]:
    return lambda: Greeting("gpu", node_id, age)


def silent() -> Greeting:
    raise BackendFailed("nobody there")


def test_the_younger_one_ends_and_says_who_has_the_name() -> None:
    ended, (error,) = looked(Mesh(OTHER, answers=says(500.0)), age=2.0)
    assert ended == [True]
    assert error.message == "node.name: name in use by the node gpu at 127.0.0.2:8086"
    assert "node.name" in error.remedy


def test_the_older_one_stays_and_says_so_once() -> None:
    with capture_logs() as logs:
        assert looked(Mesh(OTHER, answers=says(2.0)), age=500.0, times=3) == ([False] * 3, [])
    assert [log["event"] for log in logs] == ["two nodes have this node's name"]


@pytest.mark.parametrize(("own", "ends"), [("a", False), ("z", True)])
def test_of_two_that_start_together_the_ids_decide(own: str, ends: bool) -> None:
    ended, _ = looked(Mesh(OTHER, answers=says(3.2)), age=3.0, node_id=own)
    assert ended == [ends]


def test_a_process_that_has_been_relied_on_is_not_ended() -> None:
    ended, refusals = looked(Mesh(OTHER, answers=says(9 * YOUNG_S)), age=2 * YOUNG_S)
    assert (ended, refusals) == ([False], [])


def test_an_earlier_run_of_this_node_is_no_namesake() -> None:
    """Gossip has not missed it yet, and where its API was this process, or none, answers."""
    assert looked(Mesh(OTHER, answers=says(1.0, node_id="a")), age=1.0) == ([False], [])
    mesh = Mesh(OTHER, answers=silent)
    assert looked(mesh, age=1.0, times=2) == ([False, False], [])
    assert mesh.asked == ["127.0.0.2:8086"] * 2, "it may be one that does not answer yet"

"""Members that are gone are dialled at once, and then less and less often; nobody else is."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from viiwork_core.mesh import redialling
from viiwork_core.mesh.address_book import AddressBook
from viiwork_core.mesh.dialling import REDIALS_AT_ONCE
from viiwork_core.mesh.joining import LONGEST_S
from viiwork_core.mesh.member import Member
from viiwork_core.mesh.redialling import LOOK_S, Redialling
from viiwork_core.testing.fake_clock import FakeClock


def member(number: int) -> Member:
    return Member(f"n{number}", "1", f"192.0.2.{number}", 8086, gossip=f"192.0.2.{number}:7946")


class Twin:
    """A membership in memory: who answers joins it."""

    address = "192.0.2.1:7946"

    def __init__(self) -> None:
        self.alive: tuple[Member, ...] = ()
        self.answering: tuple[Member, ...] = ()
        self.dialled: list[str] = []
        self.defect: Exception | None = None
        self.looks = 0
        self.looked_again = asyncio.Event()

    async def join(self, addresses: Sequence[str]) -> int:
        self.dialled += addresses
        if self.defect is not None:
            raise self.defect
        found = tuple(one for one in self.answering if one.gossip in addresses)
        self.alive += found
        return len(found)

    def members(self) -> tuple[Member, ...]:
        self.looks += 1
        if self.looks > 1:
            self.looked_again.set()
        return self.alive

    async def changes(self) -> AsyncGenerator[tuple[Member, ...], None]:
        yield self.alive

    async def leave(self) -> None:
        self.alive = ()


class Scene:
    """A node that redials."""

    def __init__(self, folder: Path) -> None:
        self.file, self.clock, self.twin = folder / "members.json", FakeClock(), Twin()
        self.redialling = Redialling(self.twin, AddressBook(self.file, self.clock, mesh="home"), self.clock)

    def look(self, *alive: Member) -> list[str]:
        """What is dialled while these are members."""
        self.twin.alive = alive
        self.twin.dialled.clear()
        asyncio.run(self.redialling.once())
        return list(self.twin.dialled)

    def looks(self, seconds: int) -> list[int]:
        """At which second something is dialled, while nobody is a member."""
        found = []
        for second in range(seconds):
            if self.look():
                found.append(second)
            self.clock.advance(LOOK_S)
        return found


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_who_is_there_is_not_dialled(scene: Scene) -> None:
    assert [scene.look(member(2)) for _ in range(3)] == [[]] * 3


def test_who_is_gone_is_dialled_soon_and_then_less_and_less(scene: Scene) -> None:
    scene.look(member(2))
    at = scene.looks(3000)
    assert at[:6] == [0, 2, 6, 14, 30, 62]
    assert {after - before for before, after in list(pairwise(at))[-5:]} == {LONGEST_S}


def test_who_comes_back_and_goes_again_is_dialled_soon(scene: Scene) -> None:
    scene.look(member(2))
    scene.looks(100)
    assert scene.look(member(2)) == []
    assert scene.looks(3) == [0, 2]


def test_who_answers_is_a_member_and_the_log_says_so(scene: Scene) -> None:
    scene.look(member(2))
    scene.twin.answering = (member(2),)
    with capture_logs() as logs:
        assert scene.look() == [member(2).gossip]
    assert scene.twin.members() == (member(2),)
    assert logs == [
        {"event": "joined", "log_level": "info", "address": member(2).gossip, "source": "memory"},
    ]


def test_who_answers_and_is_no_member_is_not_dialled_all_the_time(scene: Scene) -> None:
    """A node of a version that this one does not speak with."""
    scene.look(member(2))
    scene.twin.answering = (member(2),)
    assert scene.looks(10) == [0, 2, 6]


def test_an_address_that_another_member_has_now_is_not_dialled(scene: Scene) -> None:
    scene.look(member(2))
    assert scene.look(Member("n3", "1", "192.0.2.2", 8086, gossip=member(2).gossip)) == []


def test_this_node_does_not_dial_itself(scene: Scene) -> None:
    scene.look(member(1))
    assert scene.look() == []


def test_a_few_at_once_the_least_tried_first(scene: Scene) -> None:
    many = [member(number) for number in range(2, 12)]
    scene.look(*many)
    first, second, third = (scene.look() for _ in range(3))
    assert [len(dialled) for dialled in (first, second, third)] == [REDIALS_AT_ONCE, REDIALS_AT_ONCE, 2]
    assert sorted(first + second + third) == sorted(one.gossip for one in many)
    scene.clock.advance(2.0)
    scene.look(member(20))
    assert scene.look()[0] == member(20).gossip


def test_a_node_that_starts_dials_whom_it_knew_and_a_defect_ends_nothing(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redialling, "LOOK_S", 0.0)
    scene.file.write_text(
        json.dumps({"mesh": "home", "members": {"n2": {"address": member(2).gossip, "seen": "2027-01-15"}}})
    )
    scene.twin.defect = RuntimeError("a defect")

    async def run() -> None:
        running = asyncio.create_task(scene.redialling.run())
        await scene.twin.looked_again.wait()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    with capture_logs() as logs:
        asyncio.run(asyncio.wait_for(run(), 20))
    assert scene.twin.dialled == [member(2).gossip]
    assert [line["event"] for line in logs] == ["dialling members that are gone failed"]

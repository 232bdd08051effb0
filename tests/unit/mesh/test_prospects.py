"""Machines that never answered are dialled less and less often; nodes are not forgotten."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Self

import pytest
from structlog.testing import capture_logs

from viiwork_core.contracts.context import CommandOutput, Context
from viiwork_core.contracts.discovery import Card, Discovery, Sighting
from viiwork_core.contracts.options import NoOptions
from viiwork_core.mesh import dialling, prospects
from viiwork_core.mesh.member import Member
from viiwork_core.mesh.membership import GUESSES_AT_ONCE
from viiwork_core.mesh.prospects import LONGEST_S, FilteredSource, Prospects
from viiwork_core.testing.fake_clock import FakeClock

FIRST_S = 120.0


async def no_command(argv: Sequence[str]) -> CommandOutput:
    raise NotImplementedError


async def no_digest(path: Path) -> str:
    raise NotImplementedError


class Everyone(Discovery):
    """Sees all machines of a network."""

    name = "everyone"

    def __init__(self, *sightings: Sighting) -> None:
        super().__init__(NoOptions(), Context("me", Path(), no_command, no_digest))
        self.all = sightings
        self.told: list[str] = []

    async def __aenter__(self) -> Self:
        self.told.append("open")
        return self

    async def __aexit__(self, *error: object) -> None:
        self.told.append("closed")

    async def announce(self, card: Card) -> None:
        self.told.append(card.node)

    async def sightings(self) -> AsyncIterator[Sighting]:
        for sighting in self.all:
            yield sighting


class Twin:
    """A membership in memory."""

    address = "100.64.0.1:7946"

    def __init__(self, *answering: str) -> None:
        self.answering = set(answering)
        self.alive: tuple[Member, ...] = ()
        self.defect = ""
        self.dialled: list[str] = []
        self.at_once = self.most_at_once = 0

    async def join(self, addresses: Sequence[str]) -> int:
        self.dialled += addresses
        if self.defect in addresses:
            raise RuntimeError("a defect")
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await asyncio.sleep(0)
        self.at_once -= 1
        return len(self.answering & set(addresses))

    def members(self) -> tuple[Member, ...]:
        return self.alive

    async def changes(self) -> AsyncGenerator[tuple[Member, ...], None]:
        yield self.alive

    async def leave(self) -> None:
        self.alive = ()


def machine(number: int) -> Sighting:
    return Sighting(f"100.64.{number // 250}.{number % 250 + 2}:7946", "everyone", certain=False)


class Scene:
    """A source and who dials what it is not sure of."""

    def __init__(self, *sightings: Sighting) -> None:
        self.clock, self.twin, self.everyone = FakeClock(), Twin(), Everyone(*sightings)
        self.prospects = Prospects(self.twin, clock=self.clock, first_s=FIRST_S)
        self.source = FilteredSource(self.everyone, self.prospects)

    async def look(self) -> tuple[list[str], list[str]]:
        """What passes, and what is dialled."""
        self.twin.dialled.clear()
        dialling = asyncio.create_task(self.prospects.run())
        passed = [sighting.address async for sighting in self.source.sightings()]
        await self.prospects.settled()
        dialling.cancel()
        await asyncio.gather(dialling, return_exceptions=True)
        return passed, list(self.twin.dialled)

    def looks(self, number: int) -> list[tuple[list[str], list[str]]]:
        """One a minute."""

        async def each() -> list[tuple[list[str], list[str]]]:
            found = []
            for _ in range(number):
                found.append(await self.look())
                self.clock.advance(60.0)
            return found

        return asyncio.run(each())


ONE = machine(1).address


def test_who_never_answers_is_dialled_less_and_less() -> None:
    looks = Scene(machine(1)).looks(240)
    at = [number * 60 for number, (_, dialled) in enumerate(looks) if dialled]
    pauses = [after - before for before, after in pairwise(at)]
    assert pauses[:6] == [120, 240, 480, 960, LONGEST_S, LONGEST_S]
    assert all(passed == [] for passed, _ in looks)


def test_a_certain_sighting_passes() -> None:
    assert Scene(Sighting("100.64.0.9:7946", "everyone")).looks(3) == [(["100.64.0.9:7946"], [])] * 3


def test_who_answered_once_is_a_node_from_then_on() -> None:
    scene = Scene(machine(1))
    scene.twin.answering = {ONE}
    with capture_logs() as logs:
        assert scene.looks(1) == [([], [ONE])]
    scene.twin.answering = set()
    assert scene.looks(20) == [([ONE], [])] * 20
    assert [(line["event"], line["log_level"]) for line in logs] == [("joined", "info")]


def test_a_member_that_found_this_node_itself_is_one_too() -> None:
    scene = Scene(machine(1))
    scene.twin.alive = (Member("n", "1", "100.64.0.3", 8086, gossip=ONE),)
    assert scene.looks(1) == [([ONE], [])]
    scene.twin.alive = ()
    assert scene.looks(1) == [([ONE], [])]


def test_a_large_network_is_dialled_whole_a_few_at_a_time_and_without_noise() -> None:
    scene, node = Scene(*map(machine, range(2000))), machine(1999).address
    scene.twin.answering = {node}
    with capture_logs() as logs:
        (_, first), (passed, second), _, (_, fourth) = scene.looks(4)
    assert sorted(first) == sorted(machine(number).address for number in range(2000))
    assert scene.twin.most_at_once == GUESSES_AT_ONCE
    assert (passed, second) == ([node], [])
    assert fourth == []
    assert {line["event"] for line in logs if line["log_level"] != "debug"} == {"joined"}


def test_the_least_tried_is_dialled_first() -> None:
    scene = Scene(machine(1))

    async def looks() -> tuple[list[str], list[str]]:
        await scene.look()
        scene.clock.advance(FIRST_S)
        scene.everyone.all = (machine(1), machine(2))
        return await scene.look()

    assert asyncio.run(looks()) == ([], [machine(2).address, ONE])


def test_what_is_no_address_is_not_dialled() -> None:
    assert Scene(Sighting("box.example:7946", "everyone", certain=False), machine(1)).looks(1) == [([], [ONE])]


def test_a_flood_has_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prospects, "MAX_UNCERTAIN", 3)
    monkeypatch.setattr(dialling, "MAX_RECORDS", 2)
    scene = Scene(*map(machine, range(9)))
    (_, first), (_, second) = scene.looks(2)
    assert first == [machine(number).address for number in range(3)]
    assert set(second) < set(first)  # forgotten, and dialled again


def test_a_failing_dial_ends_nothing() -> None:
    scene = Scene(machine(1), machine(2))
    scene.twin.defect = ONE
    with capture_logs() as logs:
        assert scene.looks(1) == [([], [ONE, machine(2).address])]
    assert [line["event"] for line in logs if line["log_level"] == "error"] == ["dialling a machine failed"]


def test_the_source_is_opened_announced_and_closed() -> None:
    scene = Scene()

    async def used() -> None:
        async with scene.source as source:
            await source.announce(Card("me", "1", "100.64.0.1:7946", "default"))

    asyncio.run(used())
    assert scene.everyone.told == ["open", "me", "closed"]
    assert scene.source.name == "everyone"


def test_what_waits_to_be_dialled_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """A source that sees other addresses at each look offers them faster than they can be dialled."""
    monkeypatch.setattr(prospects, "MAX_UNCERTAIN", 3)

    async def looks() -> list[str]:
        scene = Scene()
        for number in range(4):
            scene.prospects.offer(map(machine, range(3 * number, 3 * number + 3)))
        return (await scene.look())[1]

    assert asyncio.run(looks()) == [machine(number).address for number in range(3)]

"""The discovery kit finds nothing wrong with a sound source, and each clause catches one that breaks it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

import pytest

from viiwork_core import Card, Context, Discovery, DiscoveryFailed, PluginOptions, Sighting
from viiwork_core.builtin.seeds import Seeds, SeedsOptions
from viiwork_core.testing.clauses import judge
from viiwork_core.testing.discovery_kit import DISCOVERY_CLAUSES, DiscoveryCase, check_discovery, examine_discovery
from viiwork_core.testing.engine_kit import kit_context

THERE = ("127.0.0.2:7946", "[::1]:7946")
PEER = Card("peer", "viiwork-peer", "127.0.0.3:7946", "default")


class BoardOptions(PluginOptions):
    folder: Path = Path("/nowhere")


class Board(Discovery):
    """A folder in which each node leaves a file that is called by its address."""

    name = "board"
    networks = frozenset({"cork"})
    Options: ClassVar[type[PluginOptions]] = BoardOptions

    def __init__(self, options: PluginOptions, context: Context) -> None:
        super().__init__(options, context)
        assert isinstance(options, BoardOptions)
        self.folder = options.folder
        self.own: Path | None = None

    async def own_address(self) -> str | None:
        return "127.0.0.1"

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.own is not None:
            self.own.unlink(missing_ok=True)

    async def announce(self, card: Card) -> None:
        self.own = self.folder / card.address
        if self.folder.is_dir():
            self.own.touch()

    async def sightings(self) -> AsyncIterator[Sighting]:
        await asyncio.sleep(0)
        if not self.folder.is_dir():
            raise DiscoveryFailed(f"there is no folder {self.folder}", remedy="set folder to one that exists")
        for file in sorted(self.folder.iterdir()):
            yield self.sighting(file.name)

    def sighting(self, address: str) -> Sighting:
        return Sighting(address, self.name, hint="somebody", certain=False)


class Shouting(Board):
    name = "The Board"


class TurnsOnByNone(Board):
    networks = frozenset({"none"})


class TakesAnything(Board):
    class Options(BoardOptions):
        model_config: ClassVar[Any] = {"extra": "ignore"}


class LooksAtOnce(Board):
    def __init__(self, options: PluginOptions, context: Context) -> None:
        super().__init__(options, context)
        if self.folder.is_dir():
            return
        raise FileNotFoundError(self.folder)


class ChangesItsMind(Board):
    answers: ClassVar[list[bool]] = []

    @classmethod
    def wanted(cls, options: PluginOptions) -> bool | None:
        cls.answers.append(True)
        return len(cls.answers) % 2 == 0


class ClosesOnce(Board):
    left: ClassVar[list[bool]] = [True]

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.left.pop()


class LeavesATask(Board):
    async def __aenter__(self) -> Self:
        self.task = asyncio.ensure_future(asyncio.sleep(60))
        return self


class SaysAName(Board):
    async def own_address(self) -> str | None:
        return "my-machine.local"


class WaitsToBeHeard(Board):
    async def announce(self, card: Card) -> None:
        await asyncio.sleep(60)


class ClaimsOthers(Board):
    def sighting(self, address: str) -> Sighting:
        return Sighting(address, "mdns")


class ForgetsThePort(Board):
    def sighting(self, address: str) -> Sighting:
        return Sighting(address.rpartition(":")[0], self.name)


class BareIPv6(Board):
    def sighting(self, address: str) -> Sighting:
        return Sighting(address.replace("[", "").replace("]", ""), self.name)


class OddAlternatives(Board):
    def sighting(self, address: str) -> Sighting:
        return replace(super().sighting(address), also=("localhost:7946",))


class NeverDone(Board):
    async def sightings(self) -> AsyncIterator[Sighting]:
        async for sighting in super().sightings():
            yield sighting
        await asyncio.sleep(60)


class SeesHalf(Board):
    async def sightings(self) -> AsyncIterator[Sighting]:
        async for sighting in super().sightings():
            if sighting.address.startswith("["):
                yield sighting


class Stubborn(Board):
    async def sightings(self) -> AsyncIterator[Sighting]:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            yield self.sighting(THERE[0])
            return
        await asyncio.sleep(60)


class Shrugs(Board):
    async def sightings(self) -> AsyncIterator[Sighting]:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0)
            yield self.sighting(THERE[0])


class OneLook(Board):
    """What it was looking with is gone when a look is broken off."""

    broken = False

    async def sightings(self) -> AsyncIterator[Sighting]:
        if self.broken:
            raise RuntimeError("closed")
        self.broken = True
        await asyncio.sleep(0)
        self.broken = False
        yield self.sighting(THERE[0])


class SeesNobody(Board):
    """Where it cannot look."""

    async def sightings(self) -> AsyncIterator[Sighting]:
        with suppress(DiscoveryFailed):
            async for sighting in super().sightings():
                yield sighting


class ItsOwnError(Board):
    async def sightings(self) -> AsyncIterator[Sighting]:
        for file in self.folder.iterdir():
            yield self.sighting(file.name)


class NoRemedy(Board):
    async def sightings(self) -> AsyncIterator[Sighting]:
        try:
            async for sighting in super().sightings():
                yield sighting
        except DiscoveryFailed as error:
            raise DiscoveryFailed(error.message) from error


BROKEN: list[tuple[int, type[Board], str]] = [
    (1, Shouting, "lowercase word"),
    (1, TurnsOnByNone, "turns no source on"),
    (2, TakesAnything, "unknown key is accepted"),
    (2, LooksAtOnce, "FileNotFoundError"),
    (3, ChangesItsMind, "asked again"),
    (4, ClosesOnce, "IndexError"),
    (4, LeavesATask, "still running"),
    (5, SaysAName, "my-machine.local"),
    (6, WaitsToBeHeard, "does not return"),
    (7, ClaimsOthers, "source is 'mdns'"),
    (7, ForgetsThePort, "is not ip:port"),
    (7, BareIPv6, "is not ip:port"),
    (7, OddAlternatives, "'localhost:7946' is not ip:port"),
    (7, NeverDone, "does not end"),
    (8, SeesHalf, "not reported within"),
    (9, Stubborn, "goes on"),
    (9, Shrugs, "as if it was not"),
    (9, OneLook, "closed"),
    (10, SeesNobody, "reports []"),
    (10, ItsOwnError, "FileNotFoundError"),
    (10, NoRemedy, "without a remedy"),
]


def case(folder: Path, discovery: type[Discovery] = Board) -> DiscoveryCase:
    board = folder / "board"
    board.mkdir()
    for address in THERE:
        (board / address).touch()
    return DiscoveryCase(
        discovery,
        BoardOptions(folder=board),
        kit_context(folder),
        there=THERE,
        peer=PEER,
        unable=BoardOptions(folder=folder / "none"),
    )


def test_a_sound_source_keeps_all_clauses(tmp_path: Path) -> None:
    assert asyncio.run(check_discovery(case(tmp_path))) == []


def test_seeds_keep_all_clauses(tmp_path: Path) -> None:
    seeds = DiscoveryCase(Seeds, SeedsOptions(addresses=THERE), kit_context(tmp_path), there=THERE)
    assert asyncio.run(check_discovery(seeds)) == []


def test_clauses_are_numbered_from_one() -> None:
    assert [one.number for one in DISCOVERY_CLAUSES] == list(range(1, len(DISCOVERY_CLAUSES) + 1))


def test_each_clause_has_a_source_that_breaks_it() -> None:
    assert {number for number, _, _ in BROKEN} == {one.number for one in DISCOVERY_CLAUSES}


@pytest.mark.parametrize(("number", "discovery", "told"), BROKEN)
def test_a_broken_source_is_found(tmp_path: Path, number: int, discovery: type[Board], told: str) -> None:
    clause = next(one for one in DISCOVERY_CLAUSES if one.number == number)
    tried = replace(case(tmp_path, discovery), look_within=0.3, found_within=0.3, at_once=0.3)
    (breach,) = asyncio.run(judge(clause, tried))
    assert breach.clause == number
    assert told in breach.problem


def test_a_clause_that_is_left_out_says_why(tmp_path: Path) -> None:
    verdicts = asyncio.run(examine_discovery(case(tmp_path), left_out={8: "nobody is there"}))
    assert [(one.clause, one.problem) for one in verdicts if one.outcome != "pass"] == [(8, "nobody is there")]

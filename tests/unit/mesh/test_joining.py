"""Discovery feeds the mesh: each place that is not in it yet is joined, and one bad source harms no other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Self

import pytest
from structlog.testing import capture_logs
from structlog.typing import EventDict

from viiwork_core.clock import SystemClock
from viiwork_core.contracts.context import CommandOutput, Context
from viiwork_core.contracts.discovery import Card, Discovery, Sighting
from viiwork_core.contracts.options import NoOptions
from viiwork_core.errors import ConfigError
from viiwork_core.mesh.greeting import Verdict
from viiwork_core.mesh.joining import MAX_ADDRESSES, MAX_SIGHTINGS, Joining
from viiwork_core.mesh.membership import JOINS_AT_ONCE, Member
from viiwork_core.testing.fake_clock import FakeClock

CARD = Card(node="me", node_id="1", address="127.0.0.1:7946", mesh="default")


class Twin:
    """A membership in memory: who answers joins it."""

    address = "127.0.0.1:7946"

    def __init__(self, *answering: str) -> None:
        self.answering = set(answering)
        self.tried: list[str] = []
        self.alive: tuple[Member, ...] = ()
        self.at_once = self.most_at_once = 0

    async def join(self, addresses: Sequence[str]) -> int:
        self.tried += addresses
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


async def run_command(argv: Sequence[str]) -> CommandOutput:
    raise NotImplementedError


async def digest(path: Path) -> str:
    raise NotImplementedError


class Listed(Discovery):
    """A source that sees what it is told to, and then fails if it is told to."""

    name = "listed"

    def __init__(self, *addresses: str, error: Exception | None = None) -> None:
        super().__init__(NoOptions(), Context("me", Path(), run_command, digest))
        self.addresses = list(addresses)
        self.error = error

    async def announce(self, card: Card) -> None:
        return None

    async def sightings(self) -> AsyncIterator[Sighting]:
        for address in self.addresses:
            yield Sighting(address, self.name)
        if self.error is not None:
            raise self.error


class Failing(Listed):
    """A source with a defect."""

    name = "failing"


class Several(Listed):
    """A source that sees one node at all its addresses."""

    name = "several"

    async def sightings(self) -> AsyncIterator[Sighting]:
        first, *others = self.addresses
        yield Sighting(first, self.name, hint="other", also=tuple(others))


class Late(Listed):
    """A source that cannot be opened at first, and then keeps count of who closes it."""

    name = "late"

    def __init__(self, *addresses: str, refusals: int) -> None:
        super().__init__(*addresses)
        self.refusals, self.opened, self.announced, self.closed = refusals, 0, list[Card](), 0

    async def __aenter__(self) -> Self:
        if self.refusals:
            self.refusals -= 1
            raise ConfigError("its daemon is not there")
        self.opened += 1
        return self

    async def __aexit__(self, *error: object) -> None:
        self.closed += 1

    async def announce(self, card: Card) -> None:
        self.announced.append(card)


class NeverOpen(Listed):
    """A source that waits for something when it is opened."""

    name = "never_open"

    async def __aenter__(self) -> Self:
        await asyncio.Event().wait()
        return self


class Stuck(Listed):
    """A source that never ends its look."""

    name = "stuck"

    async def sightings(self) -> AsyncIterator[Sighting]:
        await asyncio.Event().wait()
        yield Sighting("127.0.0.9:1", self.name)


LOOK_S = 15.0


def rounds(
    twin: Twin, *sources: Discovery, count: int = 1, between: Callable[[], object] = lambda: None
) -> list[EventDict]:
    """Look `count` times, an interval apart, and return the log."""

    async def run() -> None:
        clock = FakeClock()
        joining = Joining(twin, sources, clock=clock, interval_s=LOOK_S)
        for _ in range(count):
            await joining.once()
            between()
            clock.advance(LOOK_S)

    with capture_logs() as logs:
        asyncio.run(run())
    return logs


def test_what_is_seen_is_joined_once_a_look() -> None:
    twin = Twin("127.0.0.2:1", "[::1]:1")
    rounds(twin, Listed("127.0.0.2:1", "127.0.0.2:1"), Listed("127.0.0.2:1", "[::1]:1"))
    assert sorted(twin.tried) == ["127.0.0.2:1", "[::1]:1"]


def test_self_and_the_alive_are_left_alone() -> None:
    twin = Twin()
    twin.alive = (Member(node="a", node_id="1", host="127.0.0.2", api_port=1, gossip="127.0.0.2:1", suspect=True),)
    rounds(twin, Listed(twin.address, "127.0.0.2:1"))
    assert twin.tried == []


def test_eight_are_tried_at_once() -> None:
    twin = Twin()
    rounds(twin, Listed(*(f"127.0.1.{n}:1" for n in range(1, 40))))
    assert len(twin.tried) == 39
    assert twin.most_at_once == JOINS_AT_ONCE == 8


def test_a_raising_source_harms_no_other() -> None:
    twin = Twin("127.0.0.2:1")
    logs = rounds(twin, Failing(error=OSError("no socket")), Listed("127.0.0.2:1"), count=9)
    assert twin.tried == ["127.0.0.2:1"] * 9
    assert [log["reason"] for log in logs if log["log_level"] == "warning"] == [
        "discovery failing: sightings failed: OSError: no socket"
    ]


def test_a_source_that_never_ends_harms_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("viiwork_core.mesh.joining.LOOK_S", 0.05)
    twin = Twin("127.0.0.2:1")
    logs = rounds(twin, Stuck(), Listed("127.0.0.2:1"))
    assert twin.tried == ["127.0.0.2:1"]
    assert [log["event"] for log in logs] == ["joined", "a discovery source failed"]
    assert "over 0.05 s" in logs[1]["reason"]


def test_a_flood_is_cut() -> None:
    twin = Twin()
    rounds(twin, Listed(*(f"127.{n >> 8}.{n & 255}.1:1" for n in range(MAX_SIGHTINGS + 50))))
    assert len(twin.tried) == MAX_SIGHTINGS


@pytest.mark.parametrize("address", ["example.org:7946", "127.0.0.1", "", "127.0.0.1:0"])
def test_what_is_no_address_is_not_dialled(address: str) -> None:
    twin = Twin()
    logs = rounds(twin, Listed(address), count=2)
    assert twin.tried == []
    assert [log["event"] for log in logs] == ["a sighting is no address"]


def test_a_failed_join_is_logged_once_until_it_goes_well() -> None:
    twin = Twin()
    answers = iter([{"127.0.0.2:1"}, set(), set()])

    def between() -> None:
        twin.answering = next(answers, set())

    logs = rounds(twin, Listed("127.0.0.2:1"), count=4, between=between)
    assert [log["event"] for log in logs] == ["could not join", "joined", "could not join"]


def test_a_join_is_tried_again_each_interval() -> None:
    class Counting(Twin):
        async def join(self, addresses: Sequence[str]) -> int:
            if len(self.tried) == 2:
                third.set()
            return await super().join(addresses)

    async def run() -> None:
        task = asyncio.create_task(Joining(twin, [source], clock=SystemClock(), interval_s=0.001).run(CARD))
        await asyncio.wait_for(third.wait(), 20)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    third, twin, source = asyncio.Event(), Counting(), Listed("127.0.0.2:1")
    asyncio.run(run())
    assert set(twin.tried) == {"127.0.0.2:1"}


def ran(twin: Twin, *sources: Discovery, until: asyncio.Event) -> list[EventDict]:
    """Run the loops until the event, and return the log."""

    async def run() -> None:
        task = asyncio.create_task(Joining(twin, sources, clock=SystemClock(), interval_s=0.001).run(CARD))
        await asyncio.wait_for(until.wait(), 20)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with capture_logs() as logs:
        asyncio.run(run())
    return logs


class Signalling(Twin):
    """A twin that tells when somebody joined it."""

    def __init__(self, *answering: str) -> None:
        super().__init__(*answering)
        self.joined = asyncio.Event()

    async def join(self, addresses: Sequence[str]) -> int:
        found = await super().join(addresses)
        if found:
            self.joined.set()
        return found


def test_all_addresses_of_a_node_are_tried_and_one_is_enough() -> None:
    twin = Twin("127.0.0.3:1")
    logs = rounds(twin, Several("127.0.0.2:1", "127.0.0.3:1", "127.0.0.2:1", "127.0.0.4:1"))
    assert sorted(twin.tried) == ["127.0.0.2:1", "127.0.0.3:1", "127.0.0.4:1"]
    assert [(log["event"], log["address"]) for log in logs] == [("joined", "127.0.0.3:1")]


def test_the_other_addresses_of_a_member_are_left_alone() -> None:
    twin = Twin()
    twin.alive = (Member(node="a", node_id="1", host="127.0.0.3", api_port=1, gossip="127.0.0.3:1"),)
    assert rounds(twin, Several("127.0.0.2:1", "127.0.0.3:1")) == []
    assert twin.tried == []


def test_a_node_that_answers_nowhere_is_one_complaint() -> None:
    twin = Twin()
    logs = rounds(twin, Several(*(f"127.0.2.{n}:1" for n in range(1, 101))), count=2)
    assert len(twin.tried) == 2 * MAX_ADDRESSES
    assert [(log["event"], log["address"]) for log in logs] == [("could not join", "127.0.2.1:1")]


def test_a_source_that_opens_late_is_tried_again_and_closed() -> None:
    twin, late = Signalling("127.0.0.2:1"), Late("127.0.0.2:1", refusals=9)
    logs = ran(twin, late, until=twin.joined)
    assert (late.opened, late.announced, late.closed) == (1, [CARD], 1)
    complaints = [(log["event"], log["reason"]) for log in logs if log["log_level"] == "warning"]
    assert complaints == [("a discovery source does not open", "its daemon is not there")]


def test_a_source_that_never_opens_holds_up_no_other() -> None:
    twin = Signalling("127.0.0.2:1")
    ran(twin, NeverOpen(), Listed("127.0.0.2:1"), until=twin.joined)
    assert "127.0.0.2:1" in twin.tried


def test_who_never_answers_is_left_alone_for_longer_and_longer() -> None:
    clock, twin = FakeClock(), Twin()

    async def run() -> None:
        joining = Joining(twin, [Listed("127.0.0.2:1")], clock=clock, interval_s=60.0)
        for _ in range(60):
            await joining.once()
            clock.advance(60.0)

    asyncio.run(run())
    assert len(twin.tried) == 5 + 10, "after 0, 1, 2, 4 and 8 minutes, and each five from then on"


@pytest.mark.parametrize(
    ("verdict", "event", "words"),
    [
        ("mesh mode mismatch", "mesh mode mismatch", "open"),
        ("other secret", "other secret", "same secret"),
        ("", "could not join", "TCP and UDP"),
        (None, "could not join", "no answer"),
    ],
)
def test_why_nobody_answers_is_one_line_an_address(verdict: Verdict | None, event: str, words: str) -> None:
    twin, asked = Twin(), list[str]()

    async def explain(address: str) -> Verdict | None:
        asked.append(address)
        return verdict

    async def run() -> None:
        joining = Joining(twin, [Listed("127.0.0.2:1")], clock=SystemClock(), explain=explain)
        for _ in range(3):
            await joining.once()

    with capture_logs() as logs:
        asyncio.run(run())
    (line,) = logs
    assert (line["event"], line["address"]) == (event, "127.0.0.2:1")
    assert words in line["reason"]
    assert set(asked) == {"127.0.0.2:1"}


def test_a_machine_without_a_node_is_no_complaint() -> None:
    class Guessing(Listed):
        name = "guessing"

        async def sightings(self) -> AsyncIterator[Sighting]:
            yield Sighting("127.0.0.2:1", self.name, certain=False)

    twin = Twin()
    assert rounds(twin, Guessing()) == []
    assert twin.tried == ["127.0.0.2:1"]

"""Does a source of sightings keep the contract? Numbered clauses, each a plain async function over a DiscoveryCase.

    case = DiscoveryCase(MySource, MyOptions(...), kit_context(folder), there=("127.0.0.2:7946",))
    assert not await check_discovery(case)

What the source asks must be there while the kit runs, such as a fake of the daemon it speaks to.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from ipaddress import ip_address
from typing import NoReturn

import anyio
import anyio.lowlevel
from pydantic import ValidationError

from viiwork_core.contracts.context import Context
from viiwork_core.contracts.discovery import Card, Discovery, Sighting
from viiwork_core.contracts.options import PluginOptions
from viiwork_core.errors import DiscoveryFailed, EngineRefused, ViiworkError
from viiwork_core.testing.clauses import Breach, Clause, Verdict, blaming, breaches, judge, require, unchecked, verdict
from viiwork_core.testing.odd_options import odd_blocks, refuses_unknown_keys
from viiwork_core.testing.servers import kit_context

__all__ = [
    "CARD",
    "DISCOVERY_CLAUSES",
    "Breach",
    "Clause",
    "DiscoveryCase",
    "Verdict",
    "check_discovery",
    "examine_discovery",
    "judge",
    "kit_context",
]

CARD = Card(node="kit", node_id="viiwork-kit", address="127.0.0.1:7946", mesh="default")
PEER = Card(node="kit-peer", node_id="viiwork-kit-peer", address="127.0.0.2:7946", mesh="default")
WORD = re.compile(r"[a-z][a-z0-9_-]*")


@dataclass(frozen=True)
class DiscoveryCase:
    """One source with everything that the clauses need to try it."""

    discovery: type[Discovery]
    options: PluginOptions
    context: Context
    card: Card = CARD
    """What this node announces of itself."""

    there: tuple[str, ...] = ()
    """Addresses that it must report with these options; all of them within `found_within`."""

    peer: Card | None = None
    """For a source whose instances see each other: what another one announces. Its address must be reported."""

    unable: PluginOptions | None = None
    """Options with which it cannot look; None: it always can."""

    found_within: float = 30.0
    """Seconds, in which it is asked again and again."""

    look_within: float = 30.0
    """Seconds that one look may take."""

    at_once: float = 5.0
    """Seconds in which what is said to happen at once has happened, on a busy machine too."""

    @asynccontextmanager
    async def opened(self, options: PluginOptions | None = None) -> AsyncIterator[Discovery]:
        """A fresh, open instance."""
        async with self.discovery(self.options if options is None else options, self.context) as source:
            yield source

    @asynccontextmanager
    async def announced(self, card: Card | None = None) -> AsyncIterator[Discovery]:
        """An open instance that has announced the card."""
        async with self.opened() as source:
            await source.announce(self.card if card is None else card)
            yield source


async def look(case: DiscoveryCase, source: Discovery) -> list[Sighting]:
    """What one look yields. Raises AssertionError when it does not end."""
    with anyio.move_on_after(case.look_within):
        return [sighting async for sighting in source.sightings()]
    raise AssertionError(f"a look does not end within {case.look_within:g} s")


async def names_are_words(case: DiscoveryCase) -> None:
    name = getattr(case.discovery, "name", None)
    require(isinstance(name, str) and WORD.fullmatch(name), f"{name!r} is not a lowercase word")
    require(issubclass(case.discovery.Options, PluginOptions), "Options does not derive from PluginOptions")
    networks = case.discovery.networks
    require(isinstance(networks, frozenset), f"networks is {networks!r}, not a frozenset")
    require(all(WORD.fullmatch(one) for one in networks), f"a network is no lowercase word: {sorted(networks)}")
    require("none" not in networks, "mesh.network: none turns no source on")


async def bad_options_are_refused_politely(case: DiscoveryCase) -> None:
    model = case.discovery.Options
    refuses_unknown_keys(model, case.options)
    context = replace(case.context, run_command=_no_command)
    for what, block in odd_blocks(model, case.options):
        with blaming(f"{what}: neither a ValidationError nor a ViiworkError"), suppress(ValidationError, ViiworkError):
            options = model.model_validate(block)
            case.discovery.wanted(options)
            case.discovery(options, context)


async def _no_command(argv: object) -> NoReturn:
    raise EngineRefused(f"no command is run here: {argv}")


async def wanted_is_pure(case: DiscoveryCase) -> None:
    first, second = case.discovery.wanted(case.options), case.discovery.wanted(case.options)
    require(first in (True, False, None), f"wanted() says {first!r}")
    require(first is second, f"wanted() says {first}, and when asked again {second}")


async def opens_and_closes(case: DiscoveryCase) -> None:
    """Also when nothing was asked in between, twice one after the other, and without a task left behind."""
    before = asyncio.all_tasks()
    for _ in range(2):
        async with case.opened():
            pass
        async with case.announced() as source:
            await look(case, source)
    with anyio.move_on_after(case.at_once):
        while asyncio.all_tasks() - before:  # noqa: ASYNC110  # a task has no other sign of its end
            await anyio.sleep(0.02)
    left = [task.get_coro() for task in asyncio.all_tasks() - before]
    require(not left, f"still running after it was closed: {left}")


async def own_address_is_one(case: DiscoveryCase) -> None:
    source = case.discovery(case.options, case.context)
    with suppress(ViiworkError):
        address = await source.own_address()
        if address is not None:
            with blaming(f"own_address() says {address!r}"):
                ip_address(address)


async def announces_at_once(case: DiscoveryCase) -> None:
    async with case.opened() as source:
        for card in (case.card, case.card):
            with anyio.move_on_after(case.at_once) as scope:
                result: object = await source.announce(card)  # type: ignore[func-returns-value]
                require(result is None, f"announce() returns {result!r}")
            require(not scope.cancelled_caught, f"announce() does not return within {case.at_once:g} s")


async def sightings_are_sound(case: DiscoveryCase) -> None:
    async with case.announced() as source:
        for sighting in await look(case, source) + await look(case, source):
            require(isinstance(sighting, Sighting), f"not a Sighting: {sighting!r}")
            require(sighting.source == source.name, f"source is {sighting.source!r}, not {source.name!r}")
            for address in (sighting.address, *sighting.also):
                _check_address(address)
            require(sighting.hint is None or isinstance(sighting.hint, str), f"hint is {sighting.hint!r}")
            require(isinstance(sighting.certain, bool), f"certain is {sighting.certain!r}")


def _check_address(address: str) -> None:
    with blaming(f"{address!r} is not ip:port"):
        host, colon, port = address.rpartition(":")
        require(colon and port.isascii() and port.isdigit() and 0 < int(port) < 1 << 16, "no port")
        ip = ip_address(host.removeprefix("[").removesuffix("]"))
        require((ip.version == 6) == host.startswith("[") == host.endswith("]"), "brackets are for IPv6")


async def what_is_there_is_found(case: DiscoveryCase) -> None:
    wanted = set(case.there)
    async with case.announced() as source:
        if case.peer is None:
            await _find(case, source, wanted)
            return
        async with case.announced(case.peer):
            await _find(case, source, wanted | {case.peer.address})


async def _find(case: DiscoveryCase, source: Discovery, wanted: set[str]) -> None:
    seen: set[str] = set()
    with anyio.move_on_after(case.found_within):
        while not wanted <= seen:
            seen |= {address for one in await look(case, source) for address in (one.address, *one.also)}
            await anyio.sleep(0.02)
    missing = sorted(wanted - seen)
    require(not missing, f"not reported within {case.found_within:g} s: {', '.join(missing)}; seen: {sorted(seen)}")


async def a_look_can_be_cancelled(case: DiscoveryCase) -> None:
    async with case.announced() as source:
        for turns in range(4):
            task = asyncio.ensure_future(_once(source))
            for _ in range(turns):
                await anyio.lowlevel.checkpoint()
            await _end(task, case.at_once)
        await look(case, source)


async def _once(source: Discovery) -> list[Sighting]:
    return [sighting async for sighting in source.sightings()]


async def _end(task: asyncio.Task[list[Sighting]], limit: float) -> None:
    """Raises AssertionError when cancelling it has not that effect, or it failed before."""
    if task.done():
        task.result()
        return
    task.cancel()
    await asyncio.wait([task], timeout=limit)
    if not task.done():
        # Once more, so that the kit itself comes to its end.
        task.cancel()
        await asyncio.wait([task], timeout=limit)
        raise AssertionError(f"a look that is cancelled goes on for over {limit:g} s")
    if not task.cancelled():
        raise AssertionError(f"a look that is cancelled ends as if it was not: {task.exception() or task.result()!r}")


async def failing_is_said(case: DiscoveryCase) -> None:
    if case.unable is None:
        return
    async with case.opened(case.unable) as source:
        with suppress(DiscoveryFailed):
            await source.announce(case.card)
        for _ in range(2):
            try:
                found = await look(case, source)
            except DiscoveryFailed as error:
                require(error.message, "DiscoveryFailed without a message")
                require(error.remedy, f"DiscoveryFailed without a remedy: {error.message}")
            else:
                raise AssertionError(f"it cannot look, and reports {found}")


DISCOVERY_CLAUSES: tuple[Clause[DiscoveryCase], ...] = (
    Clause(1, "name and networks are lowercase words, and Options derives from PluginOptions", names_are_words),
    Clause(2, "bad options are refused with ValidationError or ConfigError", bad_options_are_refused_politely),
    Clause(3, "wanted is True, False or None, and the same when asked again", wanted_is_pure),
    Clause(4, "it opens and closes, more than once, and leaves no task behind", opens_and_closes),
    Clause(5, "own_address is an IP address or None, asked before it is opened", own_address_is_one),
    Clause(6, "announce returns at once, and can be called again", announces_at_once),
    Clause(7, "a look ends, and yields Sightings of its own with ip:port addresses", sightings_are_sound),
    Clause(8, "what is there is found", what_is_there_is_found),
    Clause(9, "a look can be cancelled, and the next one works", a_look_can_be_cancelled),
    Clause(10, "where it cannot look it raises DiscoveryFailed with a remedy, each time", failing_is_said),
)


NEED_A_NETWORK = frozenset(range(4, 11))
"""Clauses that open the source, or ask it about this machine."""


async def examine_discovery(case: DiscoveryCase, *, left_out: Mapping[int, str] | None = None) -> list[Verdict]:
    """A verdict on each clause, in the clauses' order. Those in `left_out`, which says why, are not checked."""
    excused = left_out or {}
    return [
        unchecked(clause, excused[clause.number]) if clause.number in excused else await verdict(clause, case)
        for clause in DISCOVERY_CLAUSES
    ]


async def check_discovery(case: DiscoveryCase) -> list[Breach]:
    """Check all clauses and return what is wrong, in the clauses' order."""
    return breaches(await examine_discovery(case))

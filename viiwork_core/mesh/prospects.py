"""Prospects: machines that may be nodes. They are dialled beside the rejoin loop, and less and less often while they do
not answer.

A source such as a list of all machines of a network sees far more of them than there are nodes. They are dialled a few
at a time, so that they hold up no node that is known, and without a word in the log when they do not answer. A node
that comes up later on one of them needs no dial from here: it looks for others itself, and finds this one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import AsyncExitStack, aclosing
from types import TracebackType
from typing import Final, Self

import structlog

from viiwork_core.clock import Clock
from viiwork_core.contracts.discovery import Card, Discovery, Sighting
from viiwork_core.mesh.dialling import Dialling
from viiwork_core.mesh.member import split_address
from viiwork_core.mesh.membership import GUESSES_AT_ONCE, Membership

MAX_UNCERTAIN: Final = 8192
"""Uncertain sightings of one source in one look that are taken, and those of all sources that wait to be dialled. What
is left out is seen again at the next look."""

LONGEST_S: Final = 1800.0
"""Longest wait between two dials of a machine that never answered."""

_log = structlog.get_logger("viiwork.mesh")


class Prospects:
    """Who answered, and who is not to be dialled yet. On the control loop."""

    def __init__(self, membership: Membership, *, clock: Clock, first_s: float) -> None:
        """`first_s`: the wait after a first failure, doubled by each further one up to half an hour."""
        self._membership = membership
        self._dialling = Dialling(clock, first_s=first_s, longest_s=LONGEST_S)
        self._waiting: asyncio.Queue[Sighting] = asyncio.Queue()
        self._queued: set[str] = set()

    async def run(self) -> None:
        """Dial what was offered, until cancelled."""
        async with asyncio.TaskGroup() as group:
            for _ in range(GUESSES_AT_ONCE):
                group.create_task(self._dial_on())

    async def settled(self) -> None:
        """Wait until all that was offered has been dialled."""
        await self._waiting.join()

    def offer(self, sightings: Iterable[Sighting]) -> list[Sighting]:
        """Take what is to be dialled in time, the least tried first. Returns those that answered before: they are
        nodes, not to be waited for here."""
        dialling = self._dialling
        for member in self._membership.members():
            dialling.note(member.gossip, answered=True)
        answered: list[Sighting] = []
        unknown: list[Sighting] = []
        for sighting in sightings:
            (answered if dialling.has_answered(sighting.address) else unknown).append(sighting)
        due = [one for one in unknown if dialling.is_due(one.address)]
        for one in sorted(due, key=lambda sighting: dialling.order(sighting.address)):
            # A source may see one twice.
            if one.address not in self._queued and len(self._queued) < MAX_UNCERTAIN:
                self._queued.add(one.address)
                self._waiting.put_nowait(one)
        return answered

    async def _dial_on(self) -> None:
        while True:
            sighting = await self._waiting.get()
            try:
                await self._dial(sighting)
            except Exception:  # noqa: BLE001  # a mesh loop: the next one may go better
                _log.exception("dialling a machine failed", address=sighting.address, source=sighting.source)
            finally:
                self._queued.discard(sighting.address)
                self._waiting.task_done()

    async def _dial(self, sighting: Sighting) -> None:
        address = sighting.address
        try:
            split_address(address)
            answered = await self._membership.join([address]) > 0
        except ValueError:
            answered = False
        self._dialling.note(address, answered=answered)
        if answered:
            _log.info("joined", address=address, source=sighting.source)
        else:
            _log.debug("a machine does not answer as a node", address=address, source=sighting.source)


class FilteredSource(Discovery):
    """A source whose uncertain sightings go to Prospects. The others, and those that turned out right, pass."""

    name = "filtered"

    def __init__(self, source: Discovery, prospects: Prospects) -> None:
        super().__init__(source.options, source.context)
        self.name = source.name  # type: ignore[misc]  # it stands in for the source, in the log too
        self._source = source
        self._prospects = prospects

    async def __aenter__(self) -> Self:
        await self._source.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._source.__aexit__(kind, error, trace)

    async def announce(self, card: Card) -> None:
        await self._source.announce(card)

    async def sightings(self) -> AsyncIterator[Sighting]:
        uncertain: list[Sighting] = []
        sightings = self._source.sightings()
        async with AsyncExitStack() as stack:
            if isinstance(sightings, AsyncGenerator):
                await stack.enter_async_context(aclosing(sightings))
            async for sighting in sightings:
                if sighting.certain:
                    yield sighting
                elif len(uncertain) < MAX_UNCERTAIN:
                    uncertain.append(sighting)
        for sighting in self._prospects.offer(uncertain):
            yield sighting

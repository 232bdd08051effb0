"""Brings this node into the mesh and keeps it there: what discovery sees is offered to the gossip engine to join."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from typing import Final

import structlog

from viiwork_core.clock import Clock
from viiwork_core.contracts.discovery import Card, Discovery, Sighting
from viiwork_core.errors import ViiworkError
from viiwork_core.mesh.dialling import Dialling
from viiwork_core.mesh.greeting import ADVICE, Verdict
from viiwork_core.mesh.member import split_address
from viiwork_core.mesh.membership import JOINS_AT_ONCE, Membership
from viiwork_core.registry.guard import Guard

OPEN_S: Final = 360.0
"""Deadline for opening a source, and for its announcement: what it needs may take minutes to come up."""

CLOSE_S: Final = 5.0
"""Deadline for closing one."""

LOOK_S: Final = 10.0
"""Deadline of one source's look."""

MAX_SIGHTINGS: Final = 512
"""Of one source in one look: a source that listens to the network can be flooded."""

LONGEST_S: Final = 300.0
"""Longest wait between two tries: a node that comes up late and looks for nobody itself is found within this time."""

MAX_ADDRESSES: Final = 16
"""Of one node that are tried."""

_NO_ANSWER = "no answer: nobody listens there, or the mesh there has another secret or name, or is open"
_COULD_NOT = "could not join"

Explain = Callable[[str], Awaitable[Verdict | None]]
"""What keeps this node and the one at a gossip address apart; None: nobody there can say."""


async def _unexplained(_address: str) -> Verdict | None:
    return None


_log = structlog.get_logger("viiwork.mesh")


class _Source:
    """A discovery, and what has been said about it in the log."""

    def __init__(self, discovery: Discovery, clock: Clock) -> None:
        self.discovery = discovery
        self.label, self._clock = f"discovery {discovery.name}", clock
        self.guard = Guard(self.label, clock=clock)
        self._complaints: dict[str, str] = {}

    @property
    def name(self) -> str:
        return self.discovery.name

    async def close(self) -> None:
        """Close the discovery, with a guard of its own: one that benched it for failures would not let it be closed."""
        guard = Guard(self.label, clock=self._clock)
        try:
            await guard.call("close", CLOSE_S, lambda: self.discovery.__aexit__(None, None, None))
        except ViiworkError as error:
            self.complain(self.name, "a discovery source failed", error.message, source=self.name)

    async def look(self) -> list[Sighting]:
        """What it sees; a source that fails sees nothing, and harms no other."""
        try:
            found = await self.guard.call("sightings", LOOK_S, lambda: _collect(self.discovery))
        except ViiworkError as error:
            self.complain(self.name, "a discovery source failed", error.message, source=self.name)
            return []
        self.settle(self.name)
        return found

    def complain(self, key: str, event: str, reason: str, **details: str) -> None:
        """Log once, until it goes well or is another event."""
        if self._complaints.get(key) != event:
            self._complaints[key] = event
            _log.warning(event, reason=reason, **details)

    def settle(self, key: str) -> None:
        """Forget a complaint, since it goes well again."""
        self._complaints.pop(key, None)

    def forget_all_but(self, addresses: Iterable[str]) -> None:
        """What is in the mesh now, or no longer seen, may be complained about afresh."""
        kept = {self.name, *addresses}
        self._complaints = {key: event for key, event in self._complaints.items() if key in kept}


class Joining:
    """The rejoin loops, one a source, on the control loop: a source that is stuck holds up no other."""

    def __init__(
        self,
        membership: Membership,
        sources: Sequence[Discovery],
        *,
        clock: Clock,
        interval_s: float = 15.0,
        explain: Explain = _unexplained,
    ) -> None:
        self._membership = membership
        self._sources = [_Source(source, clock) for source in sources]
        self._interval_s = interval_s
        self._clock = clock
        self._explain = explain
        # Half an interval, so that the look after a first failure tries again.
        first_s = interval_s / 2
        self._diallings = {source: Dialling(clock, first_s=first_s, longest_s=LONGEST_S) for source in self._sources}
        self._at_once = asyncio.Semaphore(JOINS_AT_ONCE)
        self._in_progress: set[str] = set()

    async def run(self, card: Card) -> None:
        """Open each source and announce this node, then look and join now and each interval, until cancelled."""
        async with asyncio.TaskGroup() as group:
            for source in self._sources:
                group.create_task(self._follow(source, card))

    async def once(self) -> None:
        """Ask all sources, and join what they saw and is not in the mesh yet."""
        await asyncio.gather(*map(self._look, self._sources))

    async def _follow(self, source: _Source, card: Card) -> None:
        """A source that cannot be opened is tried again: what it needs may start after this node."""
        while True:
            async with AsyncExitStack() as stack:
                if await self._open(source, card, stack):
                    await self._keep_looking(source)
            await asyncio.sleep(self._interval_s)

    async def _open(self, source: _Source, card: Card, stack: AsyncExitStack) -> bool:
        discovery, guard = source.discovery, source.guard
        try:
            await guard.call("open", OPEN_S, discovery.__aenter__)
            stack.push_async_callback(source.close)
            await guard.call("announce", OPEN_S, lambda: discovery.announce(card))
        except ViiworkError as error:
            source.complain(source.name, "a discovery source does not open", error.message, source=source.name)
            return False
        return True

    async def _keep_looking(self, source: _Source) -> None:
        while True:
            started = self._clock.monotonic()
            try:
                await self._look(source)
            except Exception:  # noqa: BLE001  # a mesh loop: the next look may go better
                _log.exception("looking for other nodes failed", source=source.name)
            await asyncio.sleep(max(0.0, started + self._interval_s - self._clock.monotonic()))

    async def _look(self, source: _Source) -> None:
        seen = {sighting.address: sighting for sighting in await source.look()}
        known = {self._membership.address, *(member.gossip for member in self._membership.members())}
        fresh = [sighting for sighting in seen.values() if known.isdisjoint(_addresses(sighting))]
        source.forget_all_but(sighting.address for sighting in fresh)
        dialling = self._diallings[source]
        dialling.keep(address for sighting in seen.values() for address in _addresses(sighting))
        for address in known:
            dialling.note(address, answered=True)
        await asyncio.gather(*(self._join(source, sighting) for sighting in fresh))

    async def _join(self, source: _Source, sighting: Sighting) -> None:
        """Try all addresses of one node. The one that answers is a member's from then on, and is not tried again."""
        address, addresses = sighting.address, []
        for one in _addresses(sighting):
            try:
                split_address(one)
            except ValueError as error:
                source.complain(one, "a sighting is no address", str(error), source=sighting.source)
                continue
            if self._diallings[source].is_due(one):
                addresses.append(one)
        answers = await asyncio.gather(*(self._answers(one, sighting) for one in addresses))
        for one, answer in zip(addresses, answers, strict=True):
            if answer is not None:
                self._diallings[source].note(one, answered=answer)
        if True in answers:
            source.settle(address)
        elif False in answers:
            await self._complain(source, sighting, addresses)

    async def _complain(self, source: _Source, sighting: Sighting, addresses: Sequence[str]) -> None:
        """Say why nobody answered, as far as the API of the node there tells."""
        verdicts = await asyncio.gather(*map(self._explain, addresses))
        verdict = next((one for one in verdicts if one is not None), None)
        if verdict is None and not sighting.certain:
            return  # a machine without a node
        reason = _NO_ANSWER if verdict is None else ADVICE[verdict]
        address = sighting.address
        source.complain(address, verdict or _COULD_NOT, reason, address=address, source=sighting.source)

    async def _answers(self, address: str, sighting: Sighting) -> bool | None:
        """Whether somebody answers there; None: another source saw it too, and it is being tried."""
        if address in self._in_progress:
            return None
        self._in_progress.add(address)
        try:
            async with self._at_once:
                joined = await self._membership.join([address])
        finally:
            self._in_progress.discard(address)
        if joined:
            _log.info("joined", address=address, source=sighting.source)
        return joined > 0


def _addresses(sighting: Sighting) -> tuple[str, ...]:
    return tuple(dict.fromkeys((sighting.address, *sighting.also)))[:MAX_ADDRESSES]


async def _collect(source: Discovery) -> list[Sighting]:
    found: list[Sighting] = []
    sightings = source.sightings()
    try:
        async for sighting in sightings:
            found.append(sighting)
            if len(found) == MAX_SIGHTINGS:
                break
    finally:
        if isinstance(sightings, AsyncGenerator):
            await sightings.aclose()
    return found

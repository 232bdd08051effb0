"""Brings this node into the mesh and keeps it there: what discovery sees is offered to the gossip engine to join."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Final

import structlog

from viiwork_core.clock import Clock
from viiwork_core.contracts.discovery import Discovery, Sighting
from viiwork_core.errors import ViiworkError
from viiwork_core.mesh.member import split_address
from viiwork_core.mesh.membership import JOINS_AT_ONCE, Membership
from viiwork_core.registry.guard import Guard

LOOK_S: Final = 10.0
"""Deadline of one source's look."""

MAX_SIGHTINGS: Final = 512
"""Of one source in one look: a source that listens to the network can be flooded."""

_NO_ANSWER = "no answer: nobody listens there, or the mesh there has another secret or name, or is open"

_log = structlog.get_logger("viiwork.mesh")


class Joining:
    """The rejoin loop, on the control loop."""

    def __init__(
        self, membership: Membership, sources: Sequence[Discovery], *, clock: Clock, interval_s: float = 15.0
    ) -> None:
        self._membership = membership
        self._sources = [(source, Guard(f"discovery {source.name}", clock=clock)) for source in sources]
        self._interval_s = interval_s
        self._clock = clock
        self._at_once = asyncio.Semaphore(JOINS_AT_ONCE)
        self._complaints: set[str] = set()

    async def run(self) -> None:
        """Look and join now and each interval, until cancelled."""
        while True:
            started = self._clock.monotonic()
            try:
                await self.once()
            except Exception:  # noqa: BLE001  # a mesh loop: the next look may go better
                _log.exception("looking for other nodes failed")
            await asyncio.sleep(max(0.0, started + self._interval_s - self._clock.monotonic()))

    async def once(self) -> None:
        """Ask all sources, and join what they saw and is not in the mesh yet."""
        looks = await asyncio.gather(*(self._look(source, guard) for source, guard in self._sources))
        seen = {sighting.address: sighting for look in looks for sighting in look}
        known = {self._membership.address, *(member.gossip for member in self._membership.members())}
        fresh = [sighting for address, sighting in seen.items() if address not in known]
        # What is in the mesh now, or no longer seen, may be complained about afresh.
        kept = {sighting.address for sighting in fresh} | {source.name for source, _ in self._sources}
        self._complaints &= kept
        await asyncio.gather(*(self._join(sighting) for sighting in fresh))

    async def _look(self, source: Discovery, guard: Guard) -> list[Sighting]:
        """What one source sees; a source that fails sees nothing, and harms no other."""
        try:
            found = await guard.call("sightings", LOOK_S, lambda: _collect(source))
        except ViiworkError as error:
            self._complain(source.name, "a discovery source failed", error.message, source=source.name)
            return []
        self._complaints.discard(source.name)
        return found

    async def _join(self, sighting: Sighting) -> None:
        address = sighting.address
        try:
            split_address(address)
        except ValueError as error:
            self._complain(address, "a sighting is no address", str(error), source=sighting.source)
            return
        async with self._at_once:
            joined = await self._membership.join([address])
        if joined:
            self._complaints.discard(address)
            _log.info("joined", address=address, source=sighting.source)
            return
        self._complain(address, "could not join", _NO_ANSWER, address=address, source=sighting.source)

    def _complain(self, key: str, event: str, reason: str, **details: str) -> None:
        """Log once, until it goes well."""
        if key not in self._complaints:
            self._complaints.add(key)
            _log.warning(event, reason=reason, **details)


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

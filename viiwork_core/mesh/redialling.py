"""Redialling: members that are gone are dialled again, at once and then less and less often.

Most of them were restarted and are back in a moment, some without knowing anybody's address. Those that this node knew
before it was itself restarted are dialled in the same manner, so that either side brings both together.
"""

from __future__ import annotations

import asyncio
from typing import Final

import structlog

from viiwork_core.clock import Clock
from viiwork_core.mesh.address_book import AddressBook
from viiwork_core.mesh.dialling import REDIALS_AT_ONCE, Dialling
from viiwork_core.mesh.joining import LONGEST_S
from viiwork_core.mesh.membership import Membership

LOOK_S: Final = 1.0

FIRST_S: Final = 2.0
"""Wait after a first dial that nobody answered, doubled by each further one up to LONGEST_S."""

_log = structlog.get_logger("viiwork.mesh")


class Redialling:
    """On the control loop, beside the loops that ask the discoveries."""

    def __init__(self, membership: Membership, book: AddressBook, clock: Clock) -> None:
        self._membership = membership
        self._book = book
        self._dialling = Dialling(clock, first_s=FIRST_S, longest_s=LONGEST_S)

    async def run(self) -> None:
        """Until cancelled."""
        await asyncio.to_thread(self._book.load)
        while True:
            try:
                await self.once()
            except Exception:  # noqa: BLE001  # a mesh loop: the next look may go better
                _log.exception("dialling members that are gone failed")
            await asyncio.sleep(LOOK_S)

    async def once(self) -> None:
        """Note who is there, and dial some of those who are not: the least tried first."""
        members = self._membership.members()
        self._book.note(members)
        there = {self._membership.address, *(member.gossip for member in members)}
        gone = [address for address in self._book.addresses() if address not in there]
        # Who is back is forgotten here, and dialled at once when it goes again.
        self._dialling.keep(gone)
        due = sorted(filter(self._dialling.is_due, gone), key=self._dialling.order)
        await asyncio.gather(*map(self._dial, due[:REDIALS_AT_ONCE]))
        await self._book.save()

    async def _dial(self, address: str) -> None:
        # Whatever comes of it: one that answers and yet is no member, of another version say, is left alone too.
        self._dialling.note(address, answered=False)
        if await self._membership.join([address]):
            _log.info("joined", address=address, source="memory")

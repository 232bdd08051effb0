"""Partials: replicas whose transfer broke off, kept for a while so that it can go on where it ended."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Generic, TypeVar

from viiwork_core.errors import ResumeFrom
from viiwork_core.kvshare.arrivals import Arrival
from viiwork_core.kvshare.sealing import TransferHeader

MOST = 4
"""Kept at a time. Their bytes count into the store's bound."""

_Kept = TypeVar("_Kept")


@dataclass(slots=True)
class _Partial(Generic[_Kept]):
    arrival: Arrival[_Kept]
    timer: asyncio.TimerHandle
    offered: bool = False
    """The sender was told, once."""


class Partials(Generic[_Kept]):
    """Those of one store, by the file they belong to. On one loop; what is given up is deleted in a thread."""

    def __init__(self, keep_s: float) -> None:
        """`keep_s`: seconds that one is kept; 0: none is."""
        self._keep_s = keep_s
        self._kept: dict[TransferHeader, _Partial[_Kept]] = {}

    def keep(self, arrival: Arrival[_Kept]) -> bool:
        """Take over an arrival that waits for its next block; False: the caller discards it."""
        header = arrival.header
        if not (self._keep_s and arrival.written):
            return False
        self.give_up(header)
        if len(self._kept) >= MOST:
            self.give_up(next(iter(self._kept)))
        timer = asyncio.get_running_loop().call_later(self._keep_s, self.give_up, header)
        self._kept[header] = _Partial(arrival, timer)
        return True

    def take(self, header: TransferHeader, start: int) -> Arrival[_Kept] | None:
        """The arrival that a transfer of this file from byte `start` on continues; None: it begins anew.

        Raises ResumeFrom when it has to begin elsewhere. One that a sender was told of and does not go on with is
        given up; a transfer from the file's end on only asks, and may ask again.
        """
        partial = self._kept.get(header)
        if partial is None:
            if start:
                raise ResumeFrom("there is nothing left to go on with", offset=0)
            return None
        if partial.arrival.written == start:
            partial.timer.cancel()
            return self._kept.pop(header).arrival
        asks = start == header.length
        if asks or not partial.offered:
            partial.offered |= not asks
            raise ResumeFrom("part of the replica is here", offset=partial.arrival.written)
        self.give_up(header)
        return self.take(header, start)

    def settle(self, header: TransferHeader) -> None:
        """A turn of a session has arrived: parts of it or of earlier ones are of no use."""
        for one in list(self._kept):
            if (one.model, one.session) == (header.model, header.session) and one.turn <= header.turn:
                self.give_up(one)

    def forget(self, session: str) -> None:
        """Drop all parts of a session."""
        for one in [one for one in self._kept if one.session == session]:
            self.give_up(one)

    def give_up(self, header: TransferHeader) -> None:
        """Drop a part, if there is one."""
        if (partial := self._kept.pop(header, None)) is not None:
            partial.timer.cancel()
            asyncio.get_running_loop().run_in_executor(None, partial.arrival.discard)

"""The load gate: backends of one node load one after another, since two loads at once take longer than both in turn."""

from __future__ import annotations

import asyncio


class LoadGate:
    """Turns in the order of joining. A turn ends when its holder leaves, whether it has loaded or never will."""

    def __init__(self) -> None:
        self._joined = 0
        self._left: dict[int, asyncio.Event] = {}
        """Of those that have not."""

    def join(self) -> int:
        """A position behind everybody else; whoever joins must leave."""
        position, self._joined = self._joined, self._joined + 1
        self._left[position] = asyncio.Event()
        return position

    async def turn(self, position: int) -> None:
        """Wait until everybody before `position` has left."""
        for left in [event for before, event in self._left.items() if before < position]:
            await left.wait()

    def leave(self, position: int) -> None:
        """End the turn, or give it up. Again is harmless."""
        left = self._left.pop(position, None)
        if left is not None:
            left.set()

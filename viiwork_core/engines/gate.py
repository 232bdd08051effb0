"""The load gate: backends of one node load one after another, since two loads at once take longer than both in turn."""

from __future__ import annotations

import asyncio


class LoadGate:
    """Turns by position, from 0. A turn ends when its holder leaves, whether it has loaded or never will."""

    def __init__(self, turns: int) -> None:
        self._left = [asyncio.Event() for _ in range(turns)]

    async def turn(self, position: int) -> None:
        """Wait until everybody before `position` has left."""
        for before in self._left[:position]:
            await before.wait()

    def leave(self, position: int) -> None:
        """End the turn, or give it up. Again is harmless."""
        self._left[position].set()

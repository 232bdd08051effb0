"""A bell: a wait that can be cut short."""

from __future__ import annotations

import asyncio

import anyio


class Bell:
    """Rung on the loop it is waited on. A ring that nobody waits for is kept for the next wait; several are one."""

    def __init__(self) -> None:
        self._rung = asyncio.Event()

    def ring(self) -> None:
        """End the wait, or the next one."""
        self._rung.set()

    async def wait(self, seconds: float) -> bool:
        """Wait at most `seconds`. True: it was rung."""
        with anyio.move_on_after(seconds):
            await self._rung.wait()
        rung = self._rung.is_set()
        self._rung.clear()
        return rung

"""Which backends drain: whoever would start waits until they are done, since their cards and memory may be its own."""

from __future__ import annotations

import asyncio


class Drains:
    """The drains of one fleet, by backend id. On the control loop."""

    def __init__(self) -> None:
        self._going: set[str] = set()
        self._over = asyncio.Event()
        self._over.set()

    def begin(self, backend_id: str) -> None:
        """The backend is on its way out. Again is harmless."""
        self._going.add(backend_id)
        self._over.clear()

    def end(self, backend_id: str) -> None:
        """Its process is gone."""
        self._going.discard(backend_id)
        if not self._going:
            self._over.set()

    async def over(self) -> None:
        """Wait until none goes on."""
        while self._going:
            await self._over.wait()

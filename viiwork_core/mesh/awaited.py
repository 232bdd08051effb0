"""A membership that begins later: the node runs before it knows its own address in the mesh."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import anyio

from viiwork_core.errors import ConfigError
from viiwork_core.mesh.member import Member
from viiwork_core.mesh.membership import KinshipMembership


class AwaitedMembership:
    """A Membership without members until `begin`. `begin`, `changes` and `leave` belong to one event loop."""

    def __init__(self) -> None:
        self._inner: KinshipMembership | None = None
        self._decided = asyncio.Event()
        """It has begun, or it never will."""

        self._left = False

    async def begin(self, inner: KinshipMembership) -> bool:
        """Start `inner` and be it from now on; False: this node has left already.

        Raises ConfigError when its address cannot be bound.
        """
        with anyio.CancelScope(shield=True):
            # Cut off here, it would gossip with nobody left to end it.
            try:
                await inner.start()
            except ConfigError:
                await inner.leave()
                raise
            if self._left:
                await inner.leave()
                return False
        self._inner = inner
        self._decided.set()
        return True

    @property
    def address(self) -> str:
        """Empty before it has begun."""
        return "" if self._inner is None else self._inner.address

    async def join(self, addresses: Sequence[str]) -> int:
        return 0 if self._inner is None else await self._inner.join(addresses)

    def members(self) -> tuple[Member, ...]:
        return () if self._inner is None else self._inner.members()

    async def changes(self) -> AsyncGenerator[tuple[Member, ...], None]:
        await self._decided.wait()
        if self._inner is not None:
            async with aclosing(self._inner.changes()) as changes:
                async for members in changes:
                    yield members

    async def leave(self) -> None:
        self._left = True
        self._decided.set()
        if self._inner is not None:
            await self._inner.leave()

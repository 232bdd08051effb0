"""Receiving: a sealed stream from another member becomes a replica in the store, or nothing at all.

It comes as chunks of an HTTP body, or on a connection of its own, which one thread empties.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from itertools import chain
from typing import Final

import anyio
import anyio.to_thread

from viiwork_core.kvshare.incoming import Incoming, Reception
from viiwork_core.kvshare.replicas import Replica
from viiwork_core.kvshare.sealing import BLOCK, Opener
from viiwork_core.kvshare.upgraded import accepted, in_thread, received

AHEAD: Final = 4 * BLOCK
"""Bytes of a body that are read while a thread is busy with those before them. Twice as much is held."""


Carrier = AsyncIterator[bytes] | socket.socket
"""Chunks of a body as they come, or a connection that is to leave HTTP, and carries nothing else then."""


async def receive(carrier: Carrier, reception: Reception, *keys: bytes) -> Replica:
    """Open a stream as it arrives and keep it as a replica when it is whole and right.

    `reception.accepts` is called once on this loop, with the header that the first frame has proven. Decryption and
    disk work run in threads. `keys`: the one that the stream is sealed with, and others that are still believed while
    the mesh changes its secret. What follows the stream on a connection is not read.

    Raises CacheRefused (damaged, cut short, not newer, forgotten meanwhile), BaseMissing for a delta that cannot be
    carried out here, ResumeFrom, StoreFull, whatever `accepts` and the chunks raise, and OSError for a connection that
    breaks or falls silent. After any of them, and after a cancellation, nothing of the transfer is left, except where
    the stream broke off and the store keeps partials.
    """
    opener = Opener(*keys)
    if isinstance(carrier, socket.socket):
        return await _from_connection(carrier, opener, reception)
    return await _from_chunks(carrier, opener, reception)


async def _from_connection(connection: socket.socket, opener: Opener, reception: Reception) -> Replica:
    await accepted(connection)
    blocks = received(connection, opener)
    first = await in_thread(connection, partial(_until_proven, blocks))
    found = reception.begin(opener)
    if isinstance(found, Replica):
        return found
    async with _leaving(found):
        await in_thread(connection, partial(found.write, chain(first, blocks)))
        return await found.commit(opener.finish())


async def _from_chunks(chunks: AsyncIterator[bytes], opener: Opener, reception: Reception) -> Replica:
    taking = _Taking(opener, reception)
    source = aiter(chunks)
    awaits = False
    try:
        while True:
            awaits = True
            chunk = await anext(source, None)
            awaits = False
            if chunk is None:
                return await taking.end()
            await taking.take(chunk)
    finally:
        await taking.leave(broken_off=awaits)


def _until_proven(blocks: Iterator[memoryview]) -> list[bytes]:
    """The first block; none: the stream has only an end."""
    return [bytes(block) for block in (next(blocks, None),) if block]


@asynccontextmanager
async def _leaving(incoming: Incoming) -> AsyncIterator[None]:
    """Let go of what was not committed. A break, and a cancellation, which is one, leave what can go on later."""
    broken_off = False
    try:
        yield
    except (OSError, asyncio.CancelledError):
        broken_off = True
        raise
    finally:
        await incoming.leave(broken_off=broken_off)


class _Taking:
    """A stream as it is taken: while a thread opens and writes one part, the loop gathers the next."""

    def __init__(self, opener: Opener, reception: Reception) -> None:
        self._opener, self._reception = opener, reception
        self._gathered: list[bytes] = []
        self._size = 0
        self._work: asyncio.Task[None] | None = None
        self._found: Incoming | Replica | None = None

    async def take(self, chunk: bytes) -> None:
        """Once AHEAD bytes wait, this waits too. Raises what an earlier part came to."""
        self._gathered.append(chunk)
        self._size += len(chunk)
        busy = self._work is not None and not self._work.done()
        if self._size >= (AHEAD if busy else BLOCK):
            await self._pass_on()

    async def end(self) -> Replica:
        """The replica, now that the stream has ended."""
        await self._pass_on()
        await self._worked()
        blake3 = self._opener.finish()
        assert self._found is not None, "a stream that has come to its end has a header"
        return await self._found.commit(blake3) if isinstance(self._found, Incoming) else self._found

    async def leave(self, *, broken_off: bool) -> None:
        """Let go of everything that was not committed; `broken_off`: unless it can go on later."""
        # A task of its own, which no cancellation of this one ends.
        left = asyncio.create_task(self._left(broken_off))
        with anyio.CancelScope(shield=True):
            await asyncio.shield(left)

    async def _left(self, broken_off: bool) -> None:
        (failure,) = await asyncio.gather(self._rest(broken_off), return_exceptions=True)
        if isinstance(self._found, Incoming):
            await self._found.leave(broken_off=broken_off and failure is None)

    async def _rest(self, broken_off: bool) -> None:
        """Wait for the thread; what is to go on later then has all that has come."""
        if broken_off and self._found is not None:
            await self._pass_on()
        await self._worked()

    async def _pass_on(self) -> None:
        await self._worked()
        pieces, self._gathered, self._size = self._gathered, [], 0
        if self._found is None:
            await self._begin(pieces)
        else:
            work = partial(self._write, self._opened(pieces))
            self._work = asyncio.create_task(anyio.to_thread.run_sync(work))

    async def _begin(self, pieces: list[bytes]) -> None:
        """Nothing is read ahead before the header is proven and accepted."""
        blocks = await anyio.to_thread.run_sync(lambda: [bytes(block) for block in self._opened(pieces)])
        if self._opener.header is not None:
            self._found = self._reception.begin(self._opener)
            await anyio.to_thread.run_sync(self._write, blocks)

    def _write(self, blocks: Iterable[bytes | memoryview]) -> None:
        if isinstance(self._found, Incoming):
            self._found.write(blocks)
        else:
            for _ in blocks:
                pass

    def _opened(self, pieces: Iterable[bytes]) -> Iterator[memoryview]:
        for piece in pieces:
            yield from self._opener.feed(piece)

    async def _worked(self) -> None:
        """Until the thread is done with its part. Raises what it came to."""
        if self._work is not None:
            await asyncio.shield(self._work)

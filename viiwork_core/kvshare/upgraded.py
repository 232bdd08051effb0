"""Upgraded: the two ends of a transfer on a connection that has left HTTP, each in a thread.

The sealed stream goes one way, and then an answer in HTTP/1.1 the other, past the servers, clients and event loops that
would otherwise copy it piece by piece (docs/decisions/0006).
"""

from __future__ import annotations

import asyncio
import http.client
import select
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final, TypeVar

import anyio
import anyio.to_thread

from viiwork_core.kvshare.sealing import Opener
from viiwork_core.kvshare.streams import SealedFile
from viiwork_core.mesh.sockets import LOST_S, watch

PROTOCOL: Final = "viiwork-replica"
"""In the header Upgrade."""

OFFSET: Final = "X-Viiwork-Offset"
"""Header of a refusal: the byte of the file that a broken transfer is to go on from."""

SILENCE_S: Final = 600.0
"""How long the other end may take nothing, or give nothing: it may be reading a file of many GiB, or have a slow line.
A machine that is gone is noticed by the system, in seconds (mesh/sockets)."""

LINGER_S: Final = 2.0
"""How long an end that has answered waits for the other one to read that, or to send more."""

LINGER_MOST_S: Final = 30.0
"""How long it does so at most."""

LINGER_MOST: Final = 64 << 20
"""Bytes that may come meanwhile: what was on its way."""

ANSWER_MOST: Final = 4096
"""Bytes of an answer's body that are read."""

_ACCEPTED: Final = f"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: {PROTOCOL}\r\n\r\n".encode()
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Said:
    """What the receiver answers at the end."""

    status: int
    offset: str
    """The value of the header OFFSET; empty: there is none."""

    body: bytes


async def in_thread(connection: socket.socket, work: Callable[[], _T]) -> _T:
    """Run what blocks on a connection. A cancellation breaks the connection, which ends the work."""
    # A limiter of its own: the threads that all share are for what is short.
    task = asyncio.create_task(anyio.to_thread.run_sync(work, limiter=anyio.CapacityLimiter(1)))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
        with anyio.CancelScope(shield=True):
            while not task.done():  # whatever else is cancelled: the thread has the connection
                with suppress(asyncio.CancelledError):
                    await asyncio.wait([task])
        with suppress(Exception):  # the cancellation is what is told
            task.result()
        raise


async def give(connection: socket.socket, stream: SealedFile) -> Said:
    """Send a stream, and read the answer, which may come before its end. Raises as the stream does, and OSError."""
    _block(connection, SILENCE_S)
    return await in_thread(connection, lambda: _given(connection, stream))


def _block(connection: socket.socket, seconds: float) -> None:
    """Let it block so long at most, 0: for ever, in the system's own way: a timeout of Python's takes two calls each
    time, and a read then ends with whatever is there."""
    connection.settimeout(None)
    limit = struct.pack("@ll", int(seconds), int(seconds % 1 * 1e6))
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        connection.setsockopt(socket.SOL_SOCKET, option, limit)


@contextmanager
def _silence_told() -> Iterator[None]:
    try:
        yield
    except BlockingIOError as error:
        raise TimeoutError(f"the other end has been silent for {SILENCE_S:g} s") from error


def _given(connection: socket.socket, stream: SealedFile) -> Said:
    answered = select.poll()
    answered.register(connection, select.POLLIN)

    def out(frame: memoryview, wait_s: float) -> bool:
        # An answer ends the wait, and so does a cancellation, by breaking the connection.
        if answered.poll(wait_s * 1000):
            return False
        with _silence_told():
            connection.sendall(frame)
        return True

    with suppress(BrokenPipeError, ConnectionResetError):  # who refuses may not wait for what is still on its way
        stream.pour(out)
    _block(connection, 0)  # a slow disk answers late, and who waits for it has a limit of its own
    return _answer(connection)


def _answer(connection: socket.socket) -> Said:
    response = http.client.HTTPResponse(connection)
    try:
        response.begin()
        return Said(response.status, response.getheader(OFFSET, ""), response.read(ANSWER_MOST))
    except http.client.HTTPException as error:
        raise ConnectionError(f"the connection ended without an answer: {type(error).__name__}") from error
    finally:
        response.close()


def received(connection: socket.socket, opener: Opener) -> Iterator[memoryview]:
    """The blocks of the stream that arrives, up to its end, each valid until the next. Blocking.

    Raises as `Opener.buffer_updated` does, and OSError.
    """
    _block(connection, SILENCE_S)
    while opener.blake3 is None:
        with _silence_told():
            count = connection.recv_into(opener.get_buffer(), 0, socket.MSG_WAITALL)
        if not count:
            raise ConnectionError("the sender left")
        if block := opener.buffer_updated(count):
            yield block


async def accepted(connection: socket.socket) -> None:
    """Tell the sender that the connection has left HTTP, and wait for its stream to begin. Raises OSError."""
    # Noticed here before the sender notices it: once that asks where to go on, there is to be an answer.
    watch(connection, lost_s=LOST_S - 3)
    connection.settimeout(SILENCE_S)
    await in_thread(connection, lambda: _accepted(connection))


def _accepted(connection: socket.socket) -> None:
    connection.sendall(_ACCEPTED)
    # An answer right behind that one would end in the sender's HTTP client, which does not give it back.
    if not connection.recv(1, socket.MSG_PEEK):
        raise ConnectionError("the sender left")


async def answer(connection: socket.socket, whole: bytes) -> None:
    """Send an answer in HTTP/1.1 and end the connection, once the other end has read it or takes too long."""
    await in_thread(connection, lambda: _answered(connection, whole))


def _answered(connection: socket.socket, whole: bytes) -> None:
    with suppress(OSError):
        connection.settimeout(LINGER_S)
        connection.sendall(whole)
        connection.shutdown(socket.SHUT_WR)
        _linger(connection)


def _linger(connection: socket.socket) -> None:
    """Closing on data that nobody read would destroy the answer."""
    scrap, left, end = bytearray(1 << 16), LINGER_MOST, time.monotonic() + LINGER_MOST_S
    while left > 0 and time.monotonic() < end and (count := connection.recv_into(scrap)):
        left -= count

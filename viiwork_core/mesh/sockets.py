"""Sockets: of connections to other members, which notice a machine that is gone, and may leave HTTP."""

from __future__ import annotations

import os
import socket
import sys
from typing import Any, Final

import aiohttp

from viiwork_core.errors import BackendFailed

SWITCHING: Final = 101
"""The status with which a connection leaves HTTP."""

LOST_S: Final = 10
"""Seconds for which nothing may arrive of what was sent before a connection counts as broken: a cable that is pulled,
or a machine that has lost its power, says nothing. What is behind a connection that was kept is no exception."""

PROBED_AFTER_S: Final = 5
"""Seconds without a word after which the other machine's system is asked each second whether it is there: who waits for
an answer sends nothing that could be lost."""

# TCP_USER_TIMEOUT takes milliseconds; TCP_RXT_CONNDROPTIME and TCP_KEEPALIVE, of netinet/tcp.h on macOS, seconds.
_PROBES = ((socket.TCP_KEEPINTVL, 1), (socket.TCP_KEEPCNT, LOST_S))
_LOST: Final = {
    "linux": ((18, LOST_S * 1000), (4, PROBED_AFTER_S), *_PROBES),
    "darwin": ((0x80, LOST_S), (0x10, PROBED_AFTER_S), *_PROBES),
}.get(sys.platform, ())


def noticing(place: tuple[int, int, int, str, Any]) -> socket.socket:
    """A socket for a connection there, which breaks once nothing has come from the other machine for LOST_S."""
    one = socket.socket(*place[:3])
    one.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _LOST:
        one.setsockopt(socket.IPPROTO_TCP, option, value)
    return one


def taken(response: aiohttp.ClientResponse, address: str) -> socket.socket:
    """The connection of an answer, out of the hands of the client and of the loop.

    Raises BackendFailed where it is gone, or the answer was no upgrade after all.
    """
    transport = response.connection.transport if response.connection is not None else None
    if transport is None:
        raise BackendFailed(f"{address}: the connection ended with the answer {SWITCHING}")
    try:
        connection = socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno()))
    except OSError as error:
        raise BackendFailed(f"{address}: the connection ended with the answer {SWITCHING}: {error}") from error
    response.close()
    return connection

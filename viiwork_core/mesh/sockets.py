"""Sockets: of connections to other members, which notice a machine that is gone, and may leave HTTP."""

from __future__ import annotations

import os
import socket
import sys
from typing import TYPE_CHECKING, Any, Final

from viiwork_core.errors import BackendFailed

if TYPE_CHECKING:  # it takes long, and who looks at a configuration needs none
    import aiohttp

SWITCHING: Final = 101
"""The status with which a connection leaves HTTP."""

LOST_S: Final = 10
"""Seconds for which nothing may arrive of what was sent before a connection counts as broken: a cable that is pulled,
or a machine that has lost its power, says nothing. What is behind a connection that was kept is no exception."""

PROBED_AFTER_S: Final = 5
"""Seconds without a word after which the other machine's system is asked each second whether it is there: who waits for
an answer sends nothing that could be lost."""

# What is lost: TCP_USER_TIMEOUT takes milliseconds; TCP_RXT_CONNDROPTIME, of netinet/tcp.h on macOS, seconds. What is
# silent: TCP_KEEPIDLE, there TCP_KEEPALIVE. Each an option and its unit.
_LOST, _IDLE = {"linux": ((18, 1000), 4), "darwin": ((0x80, 1), 0x10)}.get(sys.platform, (None, None))


def noticing(place: tuple[int, int, int, str, Any]) -> socket.socket:
    """A socket for a connection there, which breaks once nothing has come from the other machine for LOST_S."""
    one = socket.socket(*place[:3])
    watch(one)
    return one


def watch(one: socket.socket, lost_s: int = LOST_S) -> None:
    """Let a connection break once nothing has come from the other machine for so many seconds."""
    one.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    options = [(socket.TCP_KEEPINTVL, 1), (socket.TCP_KEEPCNT, lost_s)]
    if _LOST is not None and _IDLE is not None:
        options += [(_LOST[0], lost_s * _LOST[1]), (_IDLE, min(PROBED_AFTER_S, lost_s))]
    for option, value in options:
        one.setsockopt(socket.IPPROTO_TCP, option, value)


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

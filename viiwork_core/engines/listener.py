"""Who listens on a port of this machine: our own child, nobody, or a stranger?

A health check alone cannot tell: a stranger on the port may well say 200.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

import anyio.to_thread
import psutil

LOOPBACK = "127.0.0.1"
_REACHED = frozenset({LOOPBACK, "0.0.0.0", "::", "*", "::ffff:127.0.0.1"})  # noqa: S104  # compared, never bound
_CONNECT_LIMIT = 1.0


class Holder(StrEnum):
    """Who holds a port, seen from one child."""

    OWN = "own"
    NOBODY = "nobody"
    STRANGER = "stranger"


@dataclass(frozen=True, slots=True)
class Listener:
    """Whoever answers on 127.0.0.1:PORT."""

    holder: Holder
    pid: int | None = None
    """None: nobody, or not visible to this user."""


class _Socket(NamedTuple):
    host: str
    pid: int | None


def free_port() -> int:
    """A port of 127.0.0.1 that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


async def listener(port: int, child: int | None) -> Listener:
    """Who answers on 127.0.0.1:`port`; `child` is the pid of our process, None while there is none."""
    return await anyio.to_thread.run_sync(_listener, port, child)


def taken(port: int, found: Listener) -> str:
    """A stranger on a port, in words."""
    who = "another process" if found.pid is None else f"another process (pid {found.pid})"
    return f"port {port} on {LOOPBACK} is held by {who}"


def _listener(port: int, child: int | None) -> Listener:
    found = _look(port, child)
    # Owners are collected before sockets: one that began to listen in between has no owner in this look, and has one
    # in the next.
    return _look(port, child) if found == Listener(Holder.STRANGER) else found


def _look(port: int, child: int | None) -> Listener:
    sockets = _visible(port, child)
    # A connection goes to the most specific address, so a wildcard socket counts only where there is no exact one.
    answering = [one for one in sockets if one.host == LOOPBACK] or sockets
    strangers = [one.pid for one in answering if not _is_ours(one.pid, child)]
    if strangers:
        return Listener(Holder.STRANGER, strangers[0])
    return Listener(Holder.OWN, answering[0].pid) if answering else Listener(Holder.NOBODY)


def _visible(port: int, child: int | None) -> list[_Socket]:
    try:
        return [_Socket(host, one.pid) for one in psutil.net_connections("tcp") if (host := _host(one, port))]
    except (psutil.AccessDenied, PermissionError):
        # macOS shows all sockets to root only; those of our own processes we may read.
        return _readable(port, child)


def _readable(port: int, child: int | None) -> list[_Socket]:
    found = [
        _Socket(host, process.pid)
        for process in _tree(child)
        for one in _connections(process)
        if (host := _host(one, port))
    ]
    return found or ([_Socket(LOOPBACK, None)] if _accepts(port) else [])


def _host(connection: Any, port: int) -> str:
    """The local address, if it is a listening socket that a connection to 127.0.0.1:`port` may reach; else ""."""
    listening = connection.status == psutil.CONN_LISTEN and connection.laddr and connection.laddr.port == port
    return str(connection.laddr.ip) if listening and connection.laddr.ip in _REACHED else ""


def _is_ours(pid: int | None, child: int | None) -> bool:
    if pid is None or child is None:
        return False
    try:
        # Each child leads a session of its own, so that most of its descendants are known without a walk.
        if os.getsid(pid) == child:
            return True
    except OSError:
        return False
    return any(process.pid == pid for process in _tree(child))


def _tree(child: int | None) -> list[psutil.Process]:
    if child is None:
        return []
    try:
        leader = psutil.Process(child)
        return [leader, *leader.children(recursive=True)]
    except psutil.Error:
        return []


def _connections(process: psutil.Process) -> Sequence[Any]:
    try:
        return process.net_connections("tcp")
    except psutil.Error:
        return ()


def _accepts(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(_CONNECT_LIMIT)
        return probe.connect_ex((LOOPBACK, port)) == 0

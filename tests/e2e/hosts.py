"""Two places to run nodes: network namespaces joined by a cable where the right to make them exists, else loopback."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from bench.lan import Machine

NAMESPACES, LOOPBACK = "namespaces", "loopback"
KINDS = (NAMESPACES, LOOPBACK)

_NETNS = Path("/run/netns")
_LINK = "viiwork0"


class NoHosts(Exception):
    """These hosts cannot be made here; the reason is the message."""


Host = Machine


@dataclass(frozen=True)
class Hosts:
    """Two hosts that reach each other."""

    first: Host
    second: Host
    detour: str
    """An address that the second host has, and that on the way from the first is the first one's own: what listens
    on it there stands between the two."""


@contextmanager
def hosts(kind: str) -> Iterator[Hosts]:
    """Two hosts, gone after the block. Raises NoHosts."""
    with _namespaces() if kind == NAMESPACES else _loopback() as made:
        yield made


@contextmanager
def _loopback() -> Iterator[Hosts]:
    made = Hosts(Host("127.0.0.1"), Host("127.0.0.2"), detour="127.0.0.9")
    try:
        for address in (made.second.address, made.detour):
            Host(address).free_port()
    except OSError as error:
        raise NoHosts(f"loopback has no address but 127.0.0.1 here: {error}") from error
    yield made


@contextmanager
def _namespaces() -> Iterator[Hosts]:
    if not sys.platform.startswith("linux") or os.geteuid() != 0 or shutil.which("ip") is None:
        raise NoHosts("network namespaces need Linux, root and the program ip")
    names = [f"viiwork-{os.getpid()}-{letter}" for letter in "ab"]
    first, second = (_NETNS / name for name in names)
    made = Hosts(Host("192.0.2.1", first), Host("192.0.2.2", second), detour="192.0.2.129")
    with ExitStack() as stack:
        for name in names:
            stack.callback(_remove, name)
        _build(made, names)
        yield made


def _build(made: Hosts, names: list[str]) -> None:
    for name in names:
        _remove(name)  # of an earlier run whose process had the same number
        try:
            _ip("netns", "add", name)
        except subprocess.CalledProcessError as error:
            raise NoHosts(f"ip netns add is refused here: {error.stderr.strip()}") from error
    _ip("-n", names[0], "link", "add", _LINK, "type", "veth", "peer", "name", _LINK, "netns", names[1])
    for host, name in zip((made.first, made.second), names, strict=True):
        _ip("-n", name, "address", "add", f"{host.address}/25", "dev", _LINK)
        _ip("-n", name, "address", "add", f"{made.detour}/32", "dev", "lo")
        for link in ("lo", _LINK):
            _ip("-n", name, "link", "set", link, "up")


def _remove(name: str) -> None:
    if (_NETNS / name).exists():
        with suppress(subprocess.CalledProcessError):
            _ip("netns", "delete", name)


def _ip(*arguments: str) -> None:
    subprocess.run(("ip", *arguments), check=True, capture_output=True, text=True)

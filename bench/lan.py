"""Machines on a switch, each a network namespace of its own: cables to pull, and a switch that falls in two.

The namespaces have no name. Each is held by a process that ends with whoever made it, so that nothing is left behind,
not even by one that is killed. Needs Linux, the programs ip and unshare, and root or a system that lets every user be
the root of namespaces of his own.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

PORT = "lan0"
"""A machine's network interface."""

SWITCH, OTHER_SWITCH = "switch0", "switch1"

_CLONE_NEWNET = 0x40000000
_BECOME_ROOT = ("unshare", "--user", "--map-root-user")
_MARK = "VIIWORK_LAN_ROOT"
"""Set once this program has become root of its own namespaces: it does not try twice."""


WITH_US: tuple[str, ...] = ("setpriv", "--pdeathsig", "TERM", "--") if shutil.which("setpriv") else ()
"""Before a command that the main thread starts: it ends when this process is killed, where the system can do that."""


class NoLan(Exception):  # named for what happened
    """Such machines cannot be made here; the reason is the message."""


@dataclass(frozen=True)
class Machine:
    """A machine, as far as its network goes."""

    address: str
    """IPv4; what others reach it at."""

    namespace: Path | None = None
    """None: it is this machine, by one of its loopback addresses."""

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Sockets and processes that this thread makes in the block belong to this machine, and stay there."""
        if self.namespace is None:
            yield
            return
        with Path(f"/proc/self/task/{threading.get_native_id()}/ns/net").open() as home:
            with self.namespace.open() as there:
                _enter(there.fileno())
            try:
                yield
            finally:
                _enter(home.fileno())

    def connect(self, address: str, port: int, timeout: float = 30.0) -> socket.socket:
        """A connection from this machine."""
        with self.inside():
            return socket.create_connection((address, port), timeout=timeout)

    def listen(self, address: str, port: int) -> socket.socket:
        """A listener on this machine."""
        with self.inside():
            return socket.create_server((address, port))

    def free_port(self) -> int:
        """A port of its address that is free for TCP and UDP."""
        with self.inside(), socket.socket() as stream, socket.socket(type=socket.SOCK_DGRAM) as datagram:
            stream.bind((self.address, 0))
            port: int = stream.getsockname()[1]
            datagram.bind((self.address, port))
            return port

    def run(self, *command: str, words: str = "") -> None:
        """Run a program there, with words to read. Raises NoLan with what it says when it fails."""
        with self.inside():
            done = subprocess.run(command, input=words, capture_output=True, text=True, check=False)  # noqa: S603
        if done.returncode:
            raise NoLan(f"{' '.join(command)} failed: {done.stderr.strip()}")


@dataclass(frozen=True)
class Lan:
    """Machines, and the switch that they are plugged into."""

    switch: Machine
    machines: tuple[Machine, ...]

    def unplug(self, machine: Machine) -> None:
        """Pull its cable: its interface has no carrier."""
        self._ip(f"link set {self._port(machine)} down")

    def plug(self, machine: Machine) -> None:
        """Put the cable back."""
        self._ip(f"link set {self._port(machine)} up")

    def split(self, others: Iterable[Machine]) -> None:
        """From now on these reach each other only, and so do the rest."""
        self._ip(*(f"link set {self._port(one)} master {OTHER_SWITCH}" for one in others))

    def heal(self) -> None:
        """All reach each other again."""
        self._ip(*(f"link set {self._port(one)} master {SWITCH}" for one in self.machines))

    def _port(self, machine: Machine) -> str:
        return f"port{self.machines.index(machine) + 1}"

    def _ip(self, *lines: str) -> None:
        self.switch.run("ip", "-batch", "-", words="\n".join(lines))


@contextmanager
def lan(count: int) -> Iterator[Lan]:
    """So many machines on a switch, at 10.77.0.1 and on and fd00:77::1 and on; gone after the block. Raises NoLan."""
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        raise NoLan("network namespaces need Linux and root")
    for program in ("ip", "unshare"):
        if shutil.which(program) is None:
            raise NoLan(f"network namespaces need the program {program}")
    with ExitStack() as stack:
        holders = [stack.enter_context(_held()) for _ in range(count + 1)]
        places = [Path(f"/proc/{pid}/ns/net") for pid in holders]
        switch = Machine("", places[0])
        machines = tuple(Machine(f"10.77.0.{i}", place) for i, place in enumerate(places[1:], 1))
        _plug_in(switch, machines, holders[1:])
        yield Lan(switch, machines)


def loopback(count: int) -> tuple[Machine, ...]:
    """So many of this machine's own addresses: 127.0.0.1 and on, or the first one alone where there are no others."""
    found = tuple(Machine(f"127.0.0.{i}") for i in range(1, count + 1))
    try:
        for one in found:
            one.free_port()
    except OSError:
        return (found[0],) * count
    return found


def become_root() -> None:
    """Run this program again as the root of namespaces of its own, where the system lets every user be that."""
    if not sys.platform.startswith("linux") or os.geteuid() == 0 or _MARK in os.environ:
        return
    if shutil.which("unshare") is None:
        return
    if subprocess.run((*_BECOME_ROOT, "--net", "true"), capture_output=True, check=False).returncode == 0:  # noqa: S603
        os.environ[_MARK] = "1"
        sys.stdout.flush()
        os.execvp(_BECOME_ROOT[0], (*_BECOME_ROOT, *sys.orig_argv))  # noqa: S606


@contextmanager
def _held() -> Iterator[int]:
    """The process that holds a new namespace: it waits for the end of its input, which comes with our own end."""
    command = ("unshare", "--net", "sh", "-c", "echo && exec cat")
    # In a session of its own, since Ctrl-C at a terminal must not take the network away before the nodes have ended.
    with subprocess.Popen(  # noqa: S603
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stderr is not None
        if not holder.stdout.readline():
            raise NoLan(f"a network namespace is refused here: {holder.stderr.read().decode().strip()}")
        yield holder.pid
        # Leaving Popen's own block closes its input, and waits for it.


def _plug_in(switch: Machine, machines: Sequence[Machine], holders: Sequence[int]) -> None:
    lines = [
        line
        for name in (SWITCH, OTHER_SWITCH)
        for line in (f"link add {name} type bridge mcast_snooping 0", f"link set {name} up")
    ]
    for i, pid in enumerate(holders, 1):
        lines.append(f"link add port{i} type veth peer name {PORT} netns {pid}")
        lines += [f"link set port{i} master {SWITCH}", f"link set port{i} up"]
    switch.run("ip", "-batch", "-", words="\n".join(lines))
    for i, machine in enumerate(machines, 1):
        own = (
            f"address add {machine.address}/24 dev {PORT}",
            f"address add fd00:77::{i}/64 dev {PORT} nodad",
            "link set lo up",
            f"link set {PORT} up",
        )
        machine.run("ip", "-batch", "-", words="\n".join(own))


def _enter(namespace: int) -> None:
    if ctypes.CDLL(None, use_errno=True).setns(namespace, _CLONE_NEWNET):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))

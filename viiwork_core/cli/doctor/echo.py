"""Ports tried from the other side: one machine listens and echoes, the other knocks and tells what arrives.

Only lines that begin with MARK are echoed, 128 bytes at most and never more than came: what is listened on may be
reached by others too.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from typing import Any, Final, cast

import anyio

from viiwork_core.cli.doctor.situation import ok, problem
from viiwork_core.contracts.doctor import Finding
from viiwork_core.errors import ConfigError

MARK: Final = b"viiwork-doctor "
LONGEST: Final = 128
TRIES: Final = 3
"""Datagrams may be lost."""

_OPEN = "let it pass from this machine to that one: firewalls of both, and of what is between them"


@dataclass(frozen=True, slots=True)
class Port:
    """One that other nodes must reach."""

    kind: str
    """tcp or udp."""

    number: int
    use: str

    def __str__(self) -> str:
        return f"{self.kind} {self.number} ({self.use})"


def needed(api: int, gossip: int) -> tuple[Port, Port, Port]:
    """The ports of a node."""
    return Port("tcp", api, "API"), Port("tcp", gossip, "gossip"), Port("udp", gossip, "gossip")


Say = Callable[[str], None]


@dataclass
class Listening:
    """The side that is knocked at."""

    hosts: Sequence[str]
    say: Say
    arrived: set[Port] = field(default_factory=set)
    all_arrived: asyncio.Event = field(default_factory=asyncio.Event)
    _ports: tuple[Port, ...] = ()

    async def serve(self, ports: Sequence[Port], seconds: float | None) -> list[Finding]:
        """Listen until each port was reached once, or for so many seconds. Raises ConfigError for one that is taken."""
        async with AsyncExitStack() as stack:
            numbers = {number: await self._opened(stack, ports, number) for number in {one.number for one in ports}}
            self._ports = tuple(Port(one.kind, numbers[one.number], one.use) for one in ports)
            self.say(f"listening on {', '.join(self.hosts)}: {', '.join(map(str, self._ports))}")
            with anyio.move_on_after(seconds):
                await self.all_arrived.wait()
        return [self._finding(port) for port in self._ports]

    async def _opened(self, stack: AsyncExitStack, ports: Sequence[Port], number: int) -> int:
        """The number that was bound: another one for 0, the same for both kinds and all hosts."""
        asked = number
        for host in self.hosts:
            for port in (one for one in ports if one.number == asked):
                number = await self._open(stack, host, Port(port.kind, number, port.use))
        return number

    async def _open(self, stack: AsyncExitStack, host: str, port: Port) -> int:
        loop = asyncio.get_running_loop()
        one = _bound(host, port)
        number = int(one.getsockname()[1])
        actual = Port(port.kind, number, port.use)
        if port.kind == "udp":
            transport, _ = await loop.create_datagram_endpoint(lambda: _Datagrams(self, actual), sock=one)
            stack.callback(transport.close)
            return number

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._answer(actual, reader, writer)

        server = await asyncio.start_server(answer, sock=one, limit=LONGEST)
        stack.callback(server.close)
        return number

    async def _answer(self, port: Port, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError):
            line = await asyncio.wait_for(reader.readuntil(b"\n"), 5)
            if line.startswith(MARK):
                writer.write(line)
                await writer.drain()
                self.saw(port, writer.get_extra_info("peername"))
        writer.close()

    def saw(self, port: Port, peer: Any) -> None:
        """Something of the doctor's came."""
        if port not in self.arrived:
            self.say(f"{port} is reached from {peer[0]}")
        self.arrived.add(port)
        if self.arrived >= set(self._ports):
            self.all_arrived.set()

    def _finding(self, port: Port) -> Finding:
        if port in self.arrived:
            return ok(f"{port} was reached")
        remedy = (
            "run `viiwork doctor ports probe` on the other machine meanwhile; if it did, open the port between them"
        )
        return problem(f"nothing came to {port}", remedy)


class _Datagrams(asyncio.DatagramProtocol):
    def __init__(self, listening: Listening, port: Port) -> None:
        self._listening, self._port = listening, port

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast: before Python 3.12 the class of such a transport says nothing of its kind.
        self._transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, addr: Any) -> None:
        if data.startswith(MARK) and len(data) <= LONGEST:
            self._transport.sendto(data, addr)
            self._listening.saw(self._port, addr)


def _bound(host: str, port: Port) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    one = socket.socket(family, socket.SOCK_DGRAM if port.kind == "udp" else socket.SOCK_STREAM)
    one.setblocking(False)
    if port.kind == "tcp":
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        one.bind((host, port.number))
    except OSError as error:
        one.close()
        raise ConfigError(
            f"cannot listen on {host} {port}: {error.strerror}",
            remedy="if this machine's node runs, stop it, or only probe: a node that runs answers on its TCP ports",
        ) from error
    return one


async def probe(host: str, ports: Sequence[Port], wait_s: float) -> list[Finding]:
    """Knock at all ports of a host, each for `wait_s` seconds at most."""
    return list(await asyncio.gather(*(_knock(host, port, wait_s) for port in ports)))


async def _knock(host: str, port: Port, wait_s: float) -> Finding:
    nonce = MARK + secrets.token_hex(8).encode() + b"\n"
    if port.kind == "udp":
        return await _knock_udp(host, port, nonce, wait_s)
    try:
        # The whole of it: a packet that a firewall drops is no answer either.
        reader, writer = await asyncio.wait_for(asyncio.open_connection(host, port.number), wait_s)
    except TimeoutError:
        return problem(f"{port} of {host} does not arrive: no answer within {wait_s:g} s", _OPEN)
    except OSError as error:
        words = error.strerror or str(error)
        return problem(f"{port} of {host} does not arrive: {words}", f"start a node or `ports serve` there, or {_OPEN}")
    echoed = b""
    try:
        with suppress(OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            writer.write(nonce)
            echoed = await asyncio.wait_for(reader.readuntil(b"\n"), wait_s)
    finally:
        writer.close()
    return ok(f"{port} of {host} arrives{'' if echoed == nonce else ', and something else listens there: its node?'}")


async def _knock_udp(host: str, port: Port, nonce: bytes, wait_s: float) -> Finding:
    came: asyncio.Queue[bytes] = asyncio.Queue()

    class Echo(asyncio.DatagramProtocol):
        def datagram_received(self, data: bytes, addr: Any) -> None:
            del addr
            came.put_nowait(data)

    loop = asyncio.get_running_loop()
    try:
        transport, _ = await loop.create_datagram_endpoint(Echo, remote_addr=(host, port.number))
    except OSError as error:
        return problem(f"{port} of {host} does not arrive: {error.strerror or error}", "name a host that is there")
    try:
        for _ in range(TRIES):
            transport.sendto(nonce)
            with anyio.move_on_after(wait_s / TRIES):
                while await came.get() != nonce:
                    pass
                return ok(f"{port} of {host} arrives")
    finally:
        transport.close()
    what = f"{port} of {host} does not arrive, or nobody echoes it: only `viiwork doctor ports serve` does"
    return problem(what, f"run that there while its node is stopped; if it runs, {_OPEN}")

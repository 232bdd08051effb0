"""Who is in the mesh: the gossip engine behind one small interface. Nothing else imports kinship.

kinship's blocking interface is used, on threads of our own. With its asyncio interface the interpreter crashed at exit
in 12 to 33 of 100 runs, even after an orderly leave and close. Waiting a little after the close hid that; having no
callbacks into an event loop avoids it. It also ties the membership to no loop: its methods may be used from any.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from ipaddress import ip_address
from typing import Final, Protocol, TypeVar

import kinship
import kinship.blocking
import structlog

from viiwork_core.errors import ConfigError
from viiwork_core.mesh.member import (
    IPAddress,
    LocalMember,
    Member,
    describe,
    gossip_name,
    network_kind,
    read_member,
    split_address,
)
from viiwork_core.security.secret import MeshSecret

__all__ = ["JOINS_AT_ONCE", "KinshipMembership", "LocalMember", "Member", "Membership"]

JOINS_AT_ONCE: Final = 8

_JOIN_S = 5.0
_LEAVE_S = 5.0
_TICK_S = 0.5

_log = structlog.get_logger("viiwork.mesh")

T = TypeVar("T")


class Membership(Protocol):
    """What the node needs of a gossip engine. Usable from any event loop."""

    @property
    def address(self) -> str:
        """ip:port of this node's gossip, for others to join."""
        ...

    async def join(self, addresses: Sequence[str]) -> int:
        """Ask these places, ip:port each, to take this node in; how many answered, 0 for none.

        None answers when nobody listens there, or when the mesh there has another secret or another name: the engine
        cannot tell these apart.
        """
        ...

    def members(self) -> tuple[Member, ...]:
        """The other members that are alive or suspect, by node name."""
        ...

    def changes(self) -> AsyncGenerator[tuple[Member, ...], None]:
        """The members now, and again after each change. Changes in quick succession may come as one.

        Ends when this node leaves.
        """
        ...

    async def leave(self) -> None:
        """Tell the others, and stop. At most about five seconds. A second call does nothing."""
        ...


class KinshipMembership:
    """Membership by kinship: SWIM with Lifeguard, on threads of its own."""

    def __init__(
        self, local: LocalMember, *, mesh: str, secret: MeshSecret | None, rejoin_interval: float = 15.0
    ) -> None:
        """`secret` None: an open mesh, in which only members in this node's own kind of network are believed.

        Raises ConfigError for an address that cannot be advertised.
        """
        self._local = local
        self._open = secret is None
        own = _own_address(local.host, open_mesh=self._open)
        self._kind = network_kind(own) if self._open else None
        self._cluster = kinship.blocking.Cluster(_settings(local, own, mesh, secret, rejoin_interval))
        self._pool = ThreadPoolExecutor(JOINS_AT_ONCE + 1, thread_name_prefix="mesh-join")
        self._reader: threading.Thread | None = None
        self._refreshing = threading.Lock()
        self._members: tuple[Member, ...] = ()
        self._bells: set[_Bell] = set()
        self._complained: set[str] = set()
        self._left = False

    async def start(self) -> None:
        """Bind and listen. Raises ConfigError when the address cannot be bound."""
        await self._in_thread(self._open_cluster)

    @property
    def address(self) -> str:
        return self._cluster.local.addr

    async def join(self, addresses: Sequence[str]) -> int:
        return 0 if self._left else await self._in_thread(lambda: self._join(list(addresses)))

    def members(self) -> tuple[Member, ...]:
        return self._members

    async def changes(self) -> AsyncGenerator[tuple[Member, ...], None]:
        bell = _Bell(asyncio.get_running_loop())
        self._bells.add(bell)
        told = None
        try:
            while not self._left:
                now = self._members
                if now != told:
                    told = now
                    yield now
                await bell.wait()
        finally:
            self._bells.discard(bell)

    async def leave(self) -> None:
        if self._reader is not None and not self._left:
            # Finishes on its thread even when this await is cancelled.
            await self._in_thread(self._close)
        self._pool.shutdown(wait=False)

    def _in_thread(self, work: Callable[[], T]) -> asyncio.Future[T]:
        return asyncio.get_running_loop().run_in_executor(self._pool, work)

    def _open_cluster(self) -> None:
        try:
            self._cluster.start()
        except OSError as error:
            where = f"{self._local.host} port {self._local.gossip_port}"
            raise ConfigError(
                f"mesh: cannot listen on {where}: {error}",
                remedy="set mesh.advertise to an address of this machine and mesh.bind_port to a free port (TCP, UDP)",
            ) from error
        # Subscribe first and read afterwards, so that nothing falls between.
        events = self._cluster.events(timeout=_TICK_S)
        self._refresh()
        self._reader = threading.Thread(target=self._read, args=(events,), name="mesh-events")
        self._reader.start()

    def _read(self, events: kinship.blocking.EventStream) -> None:
        """Whatever happened, read the members again: nothing depends on seeing every event."""
        try:
            for _ in events:
                if not threading.main_thread().is_alive():
                    return  # the interpreter is ending without a leave, and waits for this thread
                self._refresh()
        except kinship.KinshipClosed as error:
            _log.error("the gossip engine stopped; this node no longer sees others come and go", reason=str(error))

    def _join(self, addresses: list[str]) -> int:
        try:
            count = self._cluster.join(addresses, timeout=_JOIN_S)
        except (kinship.JoinError, kinship.KinshipClosed, TimeoutError):
            return 0
        self._refresh()
        return count

    def _close(self) -> None:
        reader, self._left = self._reader, True
        with contextlib.suppress(kinship.KinshipClosed):
            self._cluster.close(_LEAVE_S)
        if reader is not None:
            reader.join()
        self._members = ()
        self._ring()

    def _refresh(self) -> None:
        with self._refreshing:
            if self._left:
                return
            found = self._cluster.members()
            members = sorted(filter(None, map(self._believe, found)), key=lambda m: (m.node, m.node_id))
            self._complained &= {member.name for member in found}
            changed = tuple(members) != self._members
            self._members = tuple(members)
        if changed:
            self._ring()

    def _ring(self) -> None:
        for bell in tuple(self._bells):
            bell.ring()

    def _believe(self, found: kinship.Member) -> Member | None:
        """The member, unless it is this process, shares its name, or does not make sense."""
        if found.name == gossip_name(self._local.node, self._local.node_id):
            return None
        try:
            member = read_member(found.name, found.addr, found.meta, suspect=found.state is kinship.State.SUSPECT)
            self._check(member)
        except ValueError as error:
            self._complain(found, str(error))
            return None
        return member

    def _check(self, member: Member) -> None:
        if member.node == self._local.node:
            raise ValueError("it has this node's name: an earlier run of this node, or a duplicate")
        if not self._open:
            return
        for address in filter(None, (member.gossip, member.kv_address)):
            if network_kind(split_address(address)[0]) != self._kind:
                raise ValueError(f"{address} is not in this node's kind of network, which an open mesh demands")

    def _complain(self, found: kinship.Member, reason: str) -> None:
        if found.name not in self._complained:
            self._complained.add(found.name)
            _log.warning("member ignored", member=found.name, address=found.addr, reason=reason)


class _Bell:
    """Wakes one waiter on its own event loop, from any thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._event = asyncio.Event()

    def ring(self) -> None:
        # A loop that has ended has nobody left to wake.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._event.set)

    async def wait(self) -> None:
        await self._event.wait()
        self._event.clear()


def _settings(
    local: LocalMember, own: IPAddress, mesh: str, secret: MeshSecret | None, rejoin_interval: float
) -> kinship.Config:
    host = f"[{own}]" if own.version == 6 else str(own)
    key = {"keys": [secret.gossip]} if secret else {"insecure_plaintext": True}
    meta, name = describe(local), gossip_name(local.node, local.node_id)
    try:
        read_member(name, f"{host}:{local.gossip_port or 1}", meta)
        # The timings see a dead member in 2.2 to 3.9 s; the presets' took 5 to 6.4.
        return kinship.Config.lan(
            name=name,
            bind=f"{host}:{local.gossip_port}",
            cluster=f"viiwork-{mesh}",
            meta=meta,
            probe_interval=0.5,
            probe_timeout=0.3,
            suspicion_mult=3,
            rejoin_interval=rejoin_interval,
            **key,
        )
    except ValueError as error:
        raise ConfigError(
            f"mesh: this node cannot be described to others: {error}",
            remedy="check node.name (letters, digits, . _ -), mesh.name, mesh.advertise and mesh.bind_port",
        ) from error


def _own_address(host: str, *, open_mesh: bool) -> IPAddress:
    try:
        own = ip_address(host)
    except ValueError:
        own = None
    if own is None or own.is_unspecified or own.is_multicast:
        raise ConfigError(
            f"mesh.advertise: {host} is not the address of one network of this machine",
            remedy="write the IP address that the other nodes reach; gossip listens there and nowhere else",
        )
    if open_mesh and network_kind(own) is None:
        raise ConfigError(
            f"mesh.open: {host} is a public address, where anyone could join",
            remedy="give the mesh a secret, or advertise an address of a LAN or a tailnet",
        )
    return own

"""Who is in the mesh: the gossip engine behind one small interface. Nothing else imports kinship.

kinship's blocking interface is used, on threads of our own. With its asyncio interface the interpreter crashed at exit
in 12 to 33 of 100 runs, even after an orderly leave and close. Waiting a little after the close hid that; having no
callbacks into an event loop avoids it. It also ties the membership to no loop: its methods may be used from any.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from ipaddress import ip_address
from typing import Final, Protocol, TypeVar

import kinship
import kinship.blocking
import structlog

from viiwork_core.errors import ConfigError
from viiwork_core.mesh.dialling import REDIALS_AT_ONCE
from viiwork_core.mesh.event import EventKind, Listeners, MemberEvent
from viiwork_core.mesh.member import (
    IPAddress,
    LocalMember,
    Member,
    describe,
    gossip_name,
    network_kind,
    read_member,
)
from viiwork_core.mesh.sieve import Sieve
from viiwork_core.security.ring import SecretRing
from viiwork_core.security.secret import MeshSecret

__all__ = ["GUESSES_AT_ONCE", "JOINS_AT_ONCE", "Gossip", "KinshipMembership", "LocalMember", "Member", "Membership"]

JOINS_AT_ONCE: Final = 8

GUESSES_AT_ONCE: Final = 4
"""Beside them: places that may be no node's, each of which takes a thread for five seconds when nobody answers."""

_JOIN_S = 5.0
_LEAVE_S = 5.0
_SET_S = 5.0
_TICK_S = 0.5

_log = structlog.get_logger("viiwork.mesh")

T = TypeVar("T")


class Membership(Protocol):
    """What most of the node needs of a gossip engine. Usable from any event loop."""

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
        """The other members that are alive or suspect, by node name. A node that was restarted is there once."""
        ...

    def changes(self) -> AsyncGenerator[tuple[Member, ...], None]:
        """The members now, and again after each change. Changes in quick succession may come as one.

        Ends when this node leaves.
        """
        ...

    async def leave(self) -> None:
        """Tell the others, and stop. At most about five seconds. A second call does nothing."""
        ...


class Gossip(Membership, Protocol):
    """The whole of it, for those who look after the membership itself."""

    def namesakes(self) -> tuple[Member, ...]:
        """Members that carry this node's name: an earlier run of it that is not missed yet, or a duplicate."""
        ...

    def events(self) -> AsyncGenerator[MemberEvent, None]:
        """What happens from now on. A listener that is too slow hears LOST. Ends when this node leaves."""
        ...

    async def set_meta(self, changes: Mapping[str, str | None]) -> None:
        """Change what this node says of itself, None: no longer. Raises ValueError for what others would refuse."""
        ...

    def key_ids(self) -> tuple[str, ...]:
        """Ids of the secrets that open gossip here, the one in use first. Empty in an open mesh."""
        ...

    async def use_key(self, key_id: str) -> None:
        """Seal gossip, and sign, with this secret from now on. Raises ValueError for one that is not installed."""
        ...

    def stats(self) -> Mapping[str, int]:
        """The engine's counters, by name."""
        ...


class KinshipMembership:
    """Membership by kinship: SWIM with Lifeguard, on threads of its own."""

    def __init__(
        self, local: LocalMember, *, mesh: str, secret: SecretRing | MeshSecret | None, rejoin_interval: float = 15.0
    ) -> None:
        """`secret` None: an open mesh, in which only members in this node's own kind of network are believed.

        Raises ConfigError for an address that cannot be advertised.
        """
        self._ring = SecretRing(secret) if isinstance(secret, MeshSecret) else secret
        if self._ring is not None:
            local = replace(local, key=self._ring.current.id)
        self._local = local
        own = _own_address(local.host, open_mesh=secret is None)
        self._sieve = Sieve(local, network_kind(own) if secret is None else None)
        self._cluster = kinship.blocking.Cluster(_settings(local, own, mesh, self._ring, rejoin_interval))
        # One more than may wait for an answer: leaving, and a change of keys, wait for none of them.
        threads = JOINS_AT_ONCE + GUESSES_AT_ONCE + REDIALS_AT_ONCE + 1
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="mesh-join")
        self._reader: threading.Thread | None = None
        self._refreshing = threading.Lock()
        self._trying = threading.Lock()
        self._members: tuple[Member, ...] = ()
        self._namesakes: tuple[Member, ...] = ()
        self._listeners = Listeners()
        self._left = False

    async def start(self) -> None:
        """Bind and listen. Raises ConfigError when the address cannot be bound."""
        await self._in_thread(self._open_cluster)

    @property
    def address(self) -> str:
        return self._cluster.local.addr

    async def join(self, addresses: Sequence[str]) -> int:
        wanted = self._sieve.dialled(addresses)
        return 0 if self._left or not wanted else await self._in_thread(lambda: self._join(wanted))

    def members(self) -> tuple[Member, ...]:
        return self._members

    def namesakes(self) -> tuple[Member, ...]:
        return self._namesakes

    async def changes(self) -> AsyncGenerator[tuple[Member, ...], None]:
        bell = self._listeners.bell()
        told = None
        try:
            while not self._left:
                now = self._members
                if now != told:
                    told = now
                    yield now
                await bell.wait()
        finally:
            self._listeners.hang_up(bell)

    def events(self) -> AsyncGenerator[MemberEvent, None]:
        return self._listeners.events()

    async def set_meta(self, changes: Mapping[str, str | None]) -> None:
        meta = {**self._cluster.local.meta, **changes}
        kept = {key: value for key, value in meta.items() if value is not None}
        read_member(gossip_name(self._local.node, self._local.node_id), self.address, kept)
        await self._in_thread(lambda: self._cluster.set_meta(kept, timeout=_SET_S))

    def key_ids(self) -> tuple[str, ...]:
        ring = self._ring
        return () if ring is None else (ring.used.id, *(key.id for key in ring.all if key != ring.used))

    async def use_key(self, key_id: str) -> None:
        if self._ring is None:
            raise ValueError("an open mesh has no keys")
        await self._in_thread(lambda: self._use(key_id))

    def stats(self) -> Mapping[str, int]:
        if self._reader is None or self._left:
            return {}
        counters = self._cluster.stats()
        return {name: getattr(counters, name) for name in counters.__slots__}

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
            for event in events:
                if not threading.main_thread().is_alive():
                    return  # the interpreter is ending without a leave, and waits for this thread
                self._refresh()
                if event is not None and (told := _told(event)) is not None:
                    self._listeners.tell(told)
        except kinship.KinshipClosed as error:
            _log.error("the gossip engine stopped; this node no longer sees others come and go", reason=str(error))

    def _join(self, addresses: list[str]) -> int:
        if self._ring is None or self._ring.previous is None or self._members:
            return self._ask(addresses)
        # Nobody is there to tell which secret the mesh uses. One join at a time, since they share the key.
        with self._trying:
            if self._members:
                return self._ask(addresses)
            before = self._ring.used
            for secret in self._ring.all:
                self._use(secret.id)
                if count := self._ask(addresses):
                    return count
            self._use(before.id)
            return 0

    def _ask(self, addresses: list[str]) -> int:
        try:
            count = self._cluster.join(addresses, timeout=_JOIN_S)
        except (kinship.JoinError, kinship.KinshipClosed, TimeoutError):
            return 0
        self._refresh()
        return count

    def _use(self, key_id: str) -> None:
        assert self._ring is not None, "an open mesh has no keys"
        secret = self._ring.use(key_id)
        with contextlib.suppress(kinship.KinshipClosed):
            self._cluster.keyring.use(secret.gossip)

    def _close(self) -> None:
        reader, self._left = self._reader, True
        with contextlib.suppress(kinship.KinshipClosed):
            self._cluster.close(_LEAVE_S)
        if reader is not None:
            reader.join()
        self._members = self._namesakes = ()
        self._listeners.ring()
        self._listeners.end()

    def _refresh(self) -> None:
        with self._refreshing:
            if self._left:
                return
            members, namesakes = self._sieve.sift(
                [(m.name, m.addr, m.meta, m.state is kinship.State.SUSPECT, m.epoch) for m in self._cluster.members()]
            )
            changed = (members, namesakes) != (self._members, self._namesakes)
            self._members, self._namesakes = members, namesakes
        if changed:
            self._listeners.ring()


_KINDS = {
    kinship.MemberJoined: EventKind.JOINED,
    kinship.MemberUpdated: EventKind.UPDATED,
    kinship.MemberSuspect: EventKind.SUSPECT,
    kinship.MemberRecovered: EventKind.RECOVERED,
    kinship.MemberDead: EventKind.DEAD,
    kinship.MemberLeft: EventKind.LEFT,
}


def _told(event: kinship.Event) -> MemberEvent | None:
    if isinstance(event, kinship.UserMessage):
        return None  # nobody here sends any
    if isinstance(event, kinship.EventsLost):
        return MemberEvent(EventKind.LOST)
    if isinstance(event, kinship.NameConflict):
        return MemberEvent(EventKind.CONFLICT, event.member.name, event.other_addr)
    return MemberEvent(_KINDS[type(event)], event.member.name, event.member.addr)


def _settings(
    local: LocalMember, own: IPAddress, mesh: str, ring: SecretRing | None, rejoin_interval: float
) -> kinship.Config:
    host = f"[{own}]" if own.version == 6 else str(own)
    key = {"keys": [key.gossip for key in reversed(ring.all)]} if ring else {"insecure_plaintext": True}
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

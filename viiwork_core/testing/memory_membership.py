"""A membership in memory: what mesh/membership promises, in one process and without time passing by itself.

Members meet on a MemoryNetwork, which a test can partition, heal, and make lose things. Nobody is suspected or counted
as dead before the test says that time has passed.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from ipaddress import ip_address

from viiwork_core.mesh.event import EventKind, Listeners, MemberEvent
from viiwork_core.mesh.member import LocalMember, Member, describe, gossip_name, network_kind, read_member
from viiwork_core.mesh.sieve import Sieve
from viiwork_core.security.ring import SecretRing
from viiwork_core.security.secret import MeshSecret


@dataclass(slots=True)
class _Known:
    """What one member holds of another."""

    state: EventKind
    """JOINED, SUSPECT, or DEAD: then it is no member, and comes back when it is reached again."""


class MemoryNetwork:
    """Where members in memory meet. For one event loop."""

    def __init__(self) -> None:
        self._members: dict[str, MemoryMembership] = {}
        self._groups: list[frozenset[str]] = []
        self._losses = 0
        self._made = 0

    # What a test does to it

    def partition(self, *groups: Iterable[MemoryMembership]) -> None:
        """From now on only members of one group reach each other; who is in none reaches nobody."""
        self._groups = [frozenset(member.address for member in group) for group in groups]

    def heal(self) -> None:
        """All reach each other again, and notice it when time passes."""
        self._groups = []

    def lose(self, joins: int) -> None:
        """The next so many joins are not answered."""
        self._losses = joins

    def kill(self, member: MemoryMembership) -> None:
        """It ends without a goodbye."""
        self._members.pop(member.address, None)

    def pass_time(self) -> None:
        """Long enough for everybody to notice one change: a member that is not reached becomes suspect, a suspect one
        dead; one that is reached again recovers or joins."""
        for member in tuple(self._members.values()):
            member.probe(self)

    # What members do with it

    def enter(self, member: MemoryMembership, host: str, port: int) -> str:
        """ip:port of a member that starts."""
        self._made += 1
        address = f"[{host}]:{port or 7946 + self._made}" if ":" in host else f"{host}:{port or 7946 + self._made}"
        self._members[address] = member
        return address

    def epoch(self) -> int:
        return self._made

    def at(self, address: str) -> MemoryMembership | None:
        return self._members.get(address)

    def reached(self, one: MemoryMembership, address: str) -> MemoryMembership | None:
        """The member at `address`, if it and `one` hear and understand each other."""
        other = self._members.get(address)
        if other is None or self._members.get(one.address) is not one:
            return None
        if self._groups and not any({one.address, address} <= group for group in self._groups):
            return None
        return other if one.understands(other) and other.understands(one) else None

    def meet(self, one: MemoryMembership, address: str) -> bool:
        """A join: whether it was answered. Then all that either knows learn of each other."""
        if self._losses:
            self._losses -= 1
            return False
        other = self.reached(one, address)
        if other is None or other is one:
            return False
        everybody = {one.address, other.address, *one.known(), *other.known()}
        for place in everybody:
            if (member := self._members.get(place)) is not None:
                member.learn(self, everybody)
        return True

    def leave(self, member: MemoryMembership) -> None:
        for other in tuple(self._members.values()):
            if other is not member and self.reached(member, other.address):
                other.forget(member, EventKind.LEFT)
        self._members.pop(member.address, None)


class MemoryMembership:
    """A Gossip on a MemoryNetwork."""

    def __init__(
        self, network: MemoryNetwork, local: LocalMember, *, mesh: str, secret: SecretRing | MeshSecret | None
    ) -> None:
        self._network = network
        self._ring = SecretRing(secret) if isinstance(secret, MeshSecret) else secret
        self._local = local if self._ring is None else replace(local, key=self._ring.current.id)
        self._mesh = mesh
        self.meta: Mapping[str, str] = describe(self._local)
        self.name = gossip_name(local.node, local.node_id)
        self.address = ""
        self.epoch = 0
        self._sieve = Sieve(local, None if secret else network_kind(ip_address(local.host)))
        self._known: dict[str, tuple[MemoryMembership, _Known]] = {}
        self._listeners = Listeners()
        self._left = False
        self._joins = 0

    async def start(self) -> None:
        self.address = self._network.enter(self, self._local.host, self._local.gossip_port)
        self.epoch = self._network.epoch()

    async def join(self, addresses: Sequence[str]) -> int:
        if self._left:
            return 0
        self._joins += 1
        ring = self._ring
        wanted = self._sieve.dialled(addresses)
        if ring is None or ring.previous is None or self.members():
            return self._ask(wanted)
        before = ring.used
        for secret in ring.all:
            ring.use(secret.id)
            if count := self._ask(wanted):
                return count
        ring.use(before.id)
        return 0

    def _ask(self, addresses: Sequence[str]) -> int:
        return sum(self._network.meet(self, address) for address in addresses)

    def members(self) -> tuple[Member, ...]:
        return self._sifted()[0]

    def namesakes(self) -> tuple[Member, ...]:
        return self._sifted()[1]

    def _sifted(self) -> tuple[tuple[Member, ...], tuple[Member, ...]]:
        return self._sieve.sift(
            [
                (other.name, other.address, other.meta, known.state is EventKind.SUSPECT, other.epoch)
                for other, known in self._known.values()
                if known.state is not EventKind.DEAD
            ]
        )

    async def changes(self) -> AsyncGenerator[tuple[Member, ...], None]:
        bell = self._listeners.bell()
        told = None
        try:
            while not self._left:
                now = self.members()
                if now != told:
                    told = now
                    yield now
                await bell.wait()
        finally:
            self._listeners.hang_up(bell)

    def events(self) -> AsyncGenerator[MemberEvent, None]:
        return self._listeners.events()

    async def set_meta(self, changes: Mapping[str, str | None]) -> None:
        meta = {**self.meta, **changes}
        kept = {key: value for key, value in meta.items() if value is not None}
        read_member(self.name, self.address, kept)
        self.meta = kept
        for address in self.known():
            if (other := self._network.reached(self, address)) is not None:
                other.tell(EventKind.UPDATED, self)

    def key_ids(self) -> tuple[str, ...]:
        ring = self._ring
        return () if ring is None else (ring.used.id, *(key.id for key in ring.all if key != ring.used))

    async def use_key(self, key_id: str) -> None:
        if self._ring is None:
            raise ValueError("an open mesh has no keys")
        self._ring.use(key_id)

    def stats(self) -> Mapping[str, int]:
        return {} if self._left else {"joins": self._joins}

    async def leave(self) -> None:
        if self._left:
            return
        self._network.leave(self)
        self._left = True
        self._known = {}
        self._listeners.ring()
        self._listeners.end()

    # What the network does

    def known(self) -> list[str]:
        """The addresses of those that are members here."""
        return [address for address, (_, known) in self._known.items() if known.state is not EventKind.DEAD]

    def understands(self, other: MemoryMembership) -> bool:
        """Whether it opens what the other seals, in a mesh of the same name."""
        if self._mesh != other._mesh or (self._ring is None) != (other._ring is None):
            return False
        return self._ring is None or other._ring is None or other._ring.used in self._ring.all

    def learn(self, network: MemoryNetwork, addresses: Iterable[str]) -> None:
        """Take in those of `addresses` that it reaches."""
        for address in addresses:
            other = network.reached(self, address)
            if other is not None and other is not self and address not in self.known():
                self._known[address] = (other, _Known(EventKind.JOINED))
                self.tell(EventKind.JOINED, other)

    def probe(self, network: MemoryNetwork) -> None:
        """See who answers."""
        for address, (other, known) in tuple(self._known.items()):
            if network.reached(self, address) is other:
                if known.state is not EventKind.JOINED:
                    told = EventKind.RECOVERED if known.state is EventKind.SUSPECT else EventKind.JOINED
                    known.state = EventKind.JOINED
                    self.tell(told, other)
            elif known.state is not EventKind.DEAD:
                known.state = EventKind.DEAD if known.state is EventKind.SUSPECT else EventKind.SUSPECT
                self.tell(known.state, other)

    def forget(self, other: MemoryMembership, why: EventKind) -> None:
        if self._known.pop(other.address, None) is not None:
            self.tell(why, other)

    def tell(self, kind: EventKind, other: MemoryMembership) -> None:
        """Tell the listeners."""
        self._listeners.ring()
        self._listeners.tell(MemberEvent(kind, other.name, other.address))

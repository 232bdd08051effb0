"""The sieve: which of the processes that the gossip engine knows count as members."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import structlog

from viiwork_core.mesh.member import LocalMember, Member, gossip_name, network_kind, read_member, split_address

Found = tuple[str, str, Mapping[str, str], bool, int]
"""Gossip name, ip:port, meta, whether it is suspect, and its epoch: higher for a later run."""

_log = structlog.get_logger("viiwork.mesh")


class Sieve:
    """Checks what others say of themselves, and says once why somebody is ignored. For one thread at a time."""

    def __init__(self, local: LocalMember, kind: int | None) -> None:
        """`kind`: of the network that members of an open mesh must be in; None: a secured mesh, which asks for none."""
        self._local = local
        self._own_name = gossip_name(local.node, local.node_id)
        self._kind = kind
        self._complained: set[str] = set()

    def sift(self, found: Sequence[Found]) -> tuple[tuple[Member, ...], tuple[Member, ...]]:
        """The members, and those that carry this node's name; by node name."""
        believed = [(one[4], member) for one in found if (member := self._believe(one)) is not None]
        self._complained &= {one[0] for one in found}
        others = [(epoch, member) for epoch, member in believed if member.node != self._local.node]
        namesakes = [member for _, member in believed if member.node == self._local.node]
        return tuple(sorted(_latest(others), key=_order)), tuple(sorted(namesakes, key=_order))

    def dialled(self, addresses: Sequence[str]) -> list[str]:
        """Those of ip:port that may be asked: in an open mesh what is said there goes out in clear."""
        return [one for one in addresses if self._kind is None or self._near(one)]

    def _near(self, address: str) -> bool:
        try:
            return network_kind(split_address(address)[0]) == self._kind
        except ValueError:
            return False

    def _believe(self, found: Found) -> Member | None:
        """The member, unless it is this process or does not make sense."""
        name, address, meta, suspect, _ = found
        if name == self._own_name:
            return None
        try:
            member = read_member(name, address, meta, suspect=suspect)
        except ValueError as error:
            self._complain(name, address, str(error))
            return None
        for one in filter(None, (member.gossip, member.kv_address)):
            if self._kind is not None and not self._near(one):
                reason = f"{one} is not in this node's kind of network, which an open mesh demands"
                self._complain(name, address, reason)
                return None
        return member

    def _complain(self, name: str, address: str, reason: str) -> None:
        if name not in self._complained:
            self._complained.add(name)
            _log.warning("member ignored", member=name, address=address, reason=reason)


def _latest(found: Sequence[tuple[int, Member]]) -> list[Member]:
    """Of several runs of one node on one machine the latest: the others have ended, and are not missed yet."""
    latest: dict[tuple[str, str], tuple[int, Member]] = {}
    for epoch, member in found:
        key = (member.node, member.host)
        if key not in latest or latest[key][0] < epoch:
            latest[key] = (epoch, member)
    return [member for _, member in latest.values()]


def _order(member: Member) -> tuple[str, str]:
    return member.node, member.node_id

"""Which hosts serve a model, as far as is known, and why a request finds none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from viiwork_core.errors import ModelNotServed, NotFound, ViiworkError
from viiwork_core.routing.backends import LocalBackends
from viiwork_core.routing.peer import Peer
from viiwork_core.routing.ticket import Ticket

MOST_NAMES: Final = 50
"""Names that an error lists."""


class Services:
    """What this node and its peers serve. Pure, on the data loop."""

    def __init__(self, node: str, local: LocalBackends, peers: Mapping[str, Peer]) -> None:
        """`peers`: by name, the router's own."""
        self._node = node
        self._local = local
        self._peers = peers

    def unknown(self, ticket: Ticket, hosts: set[str] | None = None) -> ViiworkError | None:
        """Why a ticket can go nowhere and need not wait: nobody serves its model, or its host does not; None: it may
        wait. `hosts`: of its model, where the caller knows them."""
        hosts = self.hosts(ticket.query.model) if hosts is None else hosts
        model = ticket.query.model
        if self._local.parked(model) and (ticket.pin == self._node or not hosts):
            what = f'model "{model}" is parked on {self._node}'
            return ModelNotServed(what, remedy=f"start it again there: viiwork up {model}", retry_after=5)
        drained = self.drained(model)
        if drained and (not hosts or ticket.pin in drained):
            what = f'model "{model}" takes no new requests on {_names(drained)}, which drains'
            return ModelNotServed(what, remedy="end that there: viiwork undrain", retry_after=5)
        if (lost := self._given_up(ticket, hosts)) is not None:
            return lost
        if not hosts:
            reported = (about.name for peer in self._peers.values() for about in peer.view.report.models)
            known = {*reported, *self._local.models()}
            return NotFound(f'model "{model}" is not served by any node', remedy=f"known models: {_names(known)}")
        if ticket.pin is not None and ticket.pin not in hosts:
            return NotFound(f'model "{model}" is not served by host "{ticket.pin}"', remedy=f"hosts: {_names(hosts)}")
        return None

    def _given_up(self, ticket: Ticket, hosts: set[str]) -> ModelNotServed | None:
        """The error for a model whose backends are dead for good wherever the ticket may go."""
        model = ticket.query.model
        asked = hosts if ticket.pin is None else hosts & {ticket.pin}
        if not asked or not all(self._gave_up(host, model) for host in asked):
            return None
        reason = self._local.given_up(model) if self._node in asked else None
        what = f'model "{model}" has failed on {_names(asked)}' + (f": {reason}" if reason else "")
        remedy = f"mend it, then there: viiwork down {model}, and viiwork up {model}"
        return ModelNotServed(what, remedy=remedy, retry_after=5)

    def _gave_up(self, host: str, model: str) -> bool:
        if host == self._node:
            return self._local.given_up(model) is not None
        about = self._peers[host].model(model)
        return about is not None and 0 < about.backends == about.dead_backends

    def hosts(self, model: str) -> set[str]:
        """The nodes that serve a model, with room or without."""
        hosts = {node for node, peer in self._peers.items() if peer.model(model) and not peer.draining}
        return hosts | {self._node} if self._local.room(model) is not None else hosts

    def drained(self, model: str) -> set[str]:
        """The nodes that have a model and take no new work."""
        nodes = {node for node, peer in self._peers.items() if peer.draining and peer.model(model)}
        return nodes | {self._node} if self._local.closed and self._local.has(model) else nodes

    def knows(self, model: str) -> bool:
        """Whether some node serves the model, or would if it did not drain, or this one had not parked it."""
        return bool(self.hosts(model)) or self._local.parked(model) or bool(self.drained(model))


def _names(names: Iterable[str]) -> str:
    told = sorted(names)
    more = f" and {len(told) - MOST_NAMES} more" if len(told) > MOST_NAMES else ""
    return (", ".join(told[:MOST_NAMES]) or "none") + more

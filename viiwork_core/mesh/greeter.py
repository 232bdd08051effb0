"""The greeter: asks another node's API why gossip with it fails, or who it is."""

from __future__ import annotations

from typing import Final

from viiwork_core.errors import BackendFailed
from viiwork_core.mesh.greeting import Caller, Greeting, Verdict, read_greeting
from viiwork_core.mesh.links import Links

USUAL_PORT: Final = 8086
"""Of an API: a place that was seen tells only where its gossip is."""

GREET_S: Final = 2.0


class Greeter:
    """Greets other nodes. Lives on the loop of its links."""

    def __init__(self, links: Links, caller: Caller, *, node_id: str, api_port: int) -> None:
        self._links = links
        self._target = caller.target()
        self._node_id = node_id
        self._ports = tuple(dict.fromkeys((api_port, USUAL_PORT)))

    async def greet(self, api: str) -> Greeting:
        """What the API at ip:port answers. Raises BackendFailed when that is no greeting."""
        answer = await self._links.ask(api, self._target, GREET_S)
        if answer.status != 200:
            raise BackendFailed(f"{api} answered a greeting with {answer.status}")
        return read_greeting(answer.body)

    async def explain(self, gossip: str) -> Verdict | None:
        """What keeps this node and the one whose gossip is at ip:port apart; "": nothing that its API knows of.

        None: no node's API answers there, on the port of this node's or the usual one.
        """
        host = gossip.rpartition(":")[0]
        for port in self._ports:
            try:
                greeting = await self.greet(f"{host}:{port}")
            except BackendFailed:
                continue
            if greeting.node_id != self._node_id:
                return greeting.fits
        return None

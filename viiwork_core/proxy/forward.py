"""A forward: the request goes to another node, whose answer passes through unchanged. One hop only."""

from __future__ import annotations

from collections.abc import Callable

from viiwork_core.clock import Clock
from viiwork_core.errors import BackendFailed, NoFreeSlot
from viiwork_core.mesh.links import Links
from viiwork_core.mesh.member import Member
from viiwork_core.proxy.exchange import Exchange
from viiwork_core.proxy.execute import REFUSALS
from viiwork_core.proxy.headers import outgoing
from viiwork_core.proxy.relay import PEER, relay
from viiwork_core.proxy.request import InferenceRequest

SESSION = "X-Viiwork-Session"
"""The session's keyed hash, as the entry node computed it."""

TURN = "X-Viiwork-Turn"
"""The session's newest turn that the entry node knows, so that the executing node counts on from there."""

CHAIN = "X-Viiwork-Chain"
"""The hash that the conversation is known by at this turn, 16 hex characters: the executing node publishes it."""

BEGINS = "X-Viiwork-Begins"
"""1: it is the conversation's first turn, which may go to any backend."""

KEY = "X-Viiwork-Key"
"""The name of the API key that the client showed, so that its tokens are counted where they are made."""

UNPROVEN = 401


class Forwarder:
    """Sends requests to peers. On the data loop."""

    def __init__(self, *, node: str, links: Links, turn_of: Callable[[str], int], clock: Clock) -> None:
        self._node = node
        self._turn_of = turn_of
        self._links = links
        self._clock = clock

    async def run(self, exchange: Exchange, member: Member) -> None:
        """Serve a request at `member`, all but the answer's end.

        Raises NoFreeSlot when it refuses and BackendFailed when it fails, both before the first byte; AnswerCut.
        """
        request = exchange.request
        headers = self._headers(request)
        if exchange.trace is not None:
            headers = exchange.trace.calls("peer", member.node, headers, self._clock.monotonic())
        opening = self._links.open_post(member, request.path, headers=headers, body=request.body.raw)
        async with opening as response:
            if response.status in REFUSALS:
                raise NoFreeSlot(f"{member.node} has no room")
            if response.status == UNPROVEN:
                raise BackendFailed(f"{member.node} could not verify this node's signature")
            await relay(response, exchange, PEER, self._clock, extra={"X-Viiwork-Origin": self._node})

    def _headers(self, request: InferenceRequest) -> list[tuple[str, str]]:
        headers = [*outgoing(request.headers), ("X-Request-Id", request.id)]
        if request.query.session is not None:
            headers.append((SESSION, request.query.session))
            headers.append((TURN, str(self._turn_of(request.query.session))))
        if request.link is not None:
            headers.append((CHAIN, f"{request.link:016x}"))
        if request.query.begins:
            headers.append((BEGINS, "1"))
        if request.key:
            headers.append((KEY, request.key))
        return headers

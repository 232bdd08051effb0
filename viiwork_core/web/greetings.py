"""GET /v1/mesh/greeting: why a node that cannot join cannot. Told to it, and to this node's log."""

from __future__ import annotations

from collections.abc import Callable

from viiwork_core.errors import InvalidRequest, NotFound
from viiwork_core.mesh.greeting import Greeting, Strangers, encode_greeting, read_caller
from viiwork_core.proxy.request import Scope, Send, request_id
from viiwork_core.web.claims import Claims, client_of
from viiwork_core.web.error_pages import send_error, send_json


class Greetings:
    """Answers greetings. On the data loop."""

    def __init__(self, claims: Claims, *, node: str, node_id: str, age_s: Callable[[], float]) -> None:
        """`age_s`: seconds since this process began."""
        self._claims = claims
        self._node, self._node_id, self._age_s = node, node_id, age_s
        self._strangers = Strangers()

    async def __call__(self, scope: Scope, send: Send) -> None:
        rid = request_id(scope["headers"])
        if self._claims.mode == "none":
            await send_error(send, NotFound("this node is in no mesh"), request_id=rid)
            return
        caller = read_caller(scope["query_string"].decode("latin-1"))
        if caller is None:
            error = InvalidRequest("a greeting says mode, name and node")
            await send_error(send, error, request_id=rid)
            return
        fits = self._claims.verdict(scope, caller)
        self._strangers.saw(client_of(scope), fits, node=caller.node)
        answer = Greeting(self._node, self._node_id, round(self._age_s(), 3), fits)
        await send_json(send, 200, encode_greeting(answer), {"content-type": "application/json"})

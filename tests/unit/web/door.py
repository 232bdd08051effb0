"""A door with an application behind it, for the tests of access."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

from viiwork_core.clock import SystemClock
from viiwork_core.proxy.request import Receive, Scope, Send
from viiwork_core.security.keys import ApiKey, KeyRing, digest_of, new_token
from viiwork_core.security.logins import Guesses, Logins
from viiwork_core.security.origins import Origins
from viiwork_core.security.signing import Verifier
from viiwork_core.testing.fake_clock import FakeClock
from viiwork_core.web.access import Access, Rules
from viiwork_core.web.claims import Claims

SECRET = b"k" * 32
TOKEN = new_token()
KEY = ApiKey("alice", digest_of(TOKEN))
CHAT, DOWN, STATUS = "/v1/chat/completions", "/v1/models/down", "/v1/status"
Header = tuple[str, str]


@dataclass
class Door:
    """A door with an application behind it that answers 200 to whatever gets through."""

    keyed: bool = True
    secured: bool = False
    origins: Origins = field(default_factory=Origins)

    def __post_init__(self) -> None:
        verifier = Verifier(SECRET, node_id="me", clock=SystemClock()) if self.secured else None
        self.claims = Claims(verifier, lambda _: ())
        self.keys = KeyRing([KEY] if self.keyed else [])
        self.logins = Logins(self.keys, FakeClock())
        rules = Rules(
            self.claims, self.keys, self.origins, self.logins, Guesses(FakeClock()), "viiwork-box", operator="token"
        )
        self.through: list[Scope] = []
        self.reads = False
        """Whether the application reads the body."""

        self.bodies: list[bytes] = []
        """What it has read."""

        self.access = Access(
            self._inner,
            rules,
            forwards=lambda: frozenset((CHAT,)),
            proves=lambda path: path == DOWN,
            is_page=lambda path: path == "/mesh",
        )

    async def _inner(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.through.append(scope)
        if self.reads:
            self.bodies.append((await receive())["body"])
        await send({"type": "http.response.start", "status": 200, "headers": [(b"vary", b"accept")]})
        await send({"type": "http.response.body", "body": b"inner", "more_body": False})

    def ask(
        self,
        path: str = CHAT,
        *headers: Header,
        method: str = "POST",
        client: str = "192.168.1.9",
        query: str = "",
        host: str = "node:8086",
        body: bytes | None = None,
    ) -> Reply:
        """`body`: may be read, once; None: reading is an error."""
        raw = [(name.lower().encode(), value.encode("latin-1")) for name, value in (("Host", host), *headers)]
        scope = {"type": "http", "method": method, "path": path, "raw_path": path.encode(), "headers": raw}
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        unread = [] if body is None else [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Any:
            if not unread:
                raise AssertionError("nothing is read at the door")
            return unread.pop()

        asyncio.run(self.access({**scope, "client": (client, 1), "query_string": query.encode()}, receive, send))
        told = [(name.decode(), value.decode("latin-1")) for name, value in sent[0]["headers"]]
        return Reply(sent[0]["status"], told, b"".join(message.get("body", b"") for message in sent[1:]))


@dataclass
class Reply:
    status: int
    lines: list[Header]
    body: bytes

    @property
    def headers(self) -> dict[str, str]:
        return dict(self.lines)

    @property
    def code(self) -> str:
        return str(json.loads(self.body)["error"]["code"])

"""Who may write what only the operator may."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from viiwork_core.clock import SystemClock
from viiwork_core.errors import Forbidden, Unauthorized
from viiwork_core.security.signing import Signer, Verifier
from viiwork_core.web.claims import Claims

KEY = b"k" * 32
TARGET = "/v1/models/down"
SECURED = Claims(Verifier(KEY, node_id="me", clock=SystemClock()), lambda _: ())
OPEN = Claims(None, lambda _: ())


def write(claims: Claims, *headers: tuple[str, str], client: str | None = "127.0.0.1", body: bytes = b"{}") -> None:
    raw = [(name.lower().encode(), value.encode()) for name, value in headers]
    path = {"path": TARGET, "raw_path": TARGET.encode(), "query_string": b""}
    scope: dict[str, Any] = {"method": "POST", "headers": raw, "client": (client, 1) if client else None, **path}
    asyncio.run(claims.write(scope, body))


@pytest.mark.parametrize("client", ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"])
@pytest.mark.parametrize("host", ["localhost", "localhost:8086", "127.0.0.1:8086", "[::1]:8086", "LOCALHOST"])
def test_this_machine_may_where_nothing_can_be_signed(client: str, host: str) -> None:
    write(OPEN, ("Host", host), client=client)


@pytest.mark.parametrize("client", ["192.168.1.9", "100.64.0.3", "::ffff:10.0.0.1", "fd00::1", "unix", "", None])
def test_other_machines_may_not(client: str | None) -> None:
    with pytest.raises(Forbidden, match="only this machine"):
        write(OPEN, ("Host", "localhost"), client=client)


@pytest.mark.parametrize("host", ["node.lan", "192.168.1.9", "localhost.example", "[::1", "", "0.0.0.0"])
def test_names_that_lead_here_from_elsewhere_are_pages(host: str) -> None:
    with pytest.raises(Forbidden, match="Host"):
        write(OPEN, ("Host", host))


def test_a_page_may_not_even_this_nodes_own() -> None:
    with pytest.raises(Forbidden, match="web page"):
        write(OPEN, ("Host", "localhost:8086"), ("Origin", "http://localhost:8086"))


def test_a_signature_is_wanted_where_there_is_a_secret_and_it_is_enough() -> None:
    def signed(body: bytes, key: bytes = KEY) -> list[tuple[str, str]]:
        return Signer(key, node="viiwork-cli@x", clock=SystemClock()).sign("POST", TARGET, [], body)

    write(SECURED, *signed(b"{}"), client="192.168.1.9")
    for headers in ([("Host", "localhost")], signed(b"{} "), signed(b"{}", key=b"o" * 32)):
        with pytest.raises(Unauthorized):
            write(SECURED, *headers)

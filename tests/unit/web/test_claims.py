"""Who a request says it comes from."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from viiwork_core.clock import SystemClock
from viiwork_core.errors import Unauthorized
from viiwork_core.proxy.request import LARGE
from viiwork_core.security.signing import FORWARDED, STREAMED, TO, Signer, Verifier
from viiwork_core.web.claims import Claims

KEY = b"k" * 32
TARGET = "/v1/chat/completions"
SECURED = Claims(Verifier(KEY, node_id="me", clock=SystemClock()), lambda _: None)
OPEN = Claims(None, {"peer": "127.0.0.2"}.get)


def scope(*headers: tuple[str, str], method: str = "POST", client: str = "127.0.0.2") -> dict[str, Any]:
    raw = [(name.lower().encode(), value.encode()) for name, value in headers]
    path = {"path": TARGET, "raw_path": TARGET.encode(), "query_string": b""}
    return {"method": method, "client": (client, 1), "headers": raw, **path}


def signed(body: Any, *, method: str = "POST", key: bytes = KEY, node: str = "peer") -> list[tuple[str, str]]:
    own = [(FORWARDED, node), (TO, "me")]
    return [*own, *Signer(key, node=node, clock=SystemClock()).sign(method, TARGET, own, body)]


def hop(claims: Claims, asked: dict[str, Any], body: bytes = b"{}") -> str | None:
    return asyncio.run(claims.hop(asked, body))


@pytest.mark.parametrize("body", [b"{}", b"x" * (LARGE + 1)])
def test_a_forward_that_is_proven_has_a_sender(body: bytes) -> None:
    assert hop(SECURED, scope(*signed(body)), body) == "peer"


def test_a_request_without_a_claim_has_none() -> None:
    assert hop(SECURED, scope()) is None
    assert hop(OPEN, scope(("X-Viiwork-Node", "peer"))) is None


@pytest.mark.parametrize(
    "headers",
    [[(FORWARDED, "peer")], signed(b"{}", key=b"o" * 32), signed(b"other"), signed(b"{}", method="PUT")],
)
def test_a_claim_that_is_not_proven_is_refused_where_it_could_be(headers: list[tuple[str, str]]) -> None:
    with pytest.raises(Unauthorized):
        hop(SECURED, scope(*headers))


def test_in_an_open_mesh_a_claim_counts_from_that_member_s_address() -> None:
    assert hop(OPEN, scope((FORWARDED, "peer"))) == "peer"
    for headers, client in (((FORWARDED, "peer"), "127.0.0.3"), ((FORWARDED, "stranger"), "127.0.0.2")):
        assert hop(OPEN, scope(headers, client=client)) == "", "not believed, and still not forwarded again"


def test_anybody_may_read_and_a_wrong_secret_is_told() -> None:
    SECURED.read(scope(method="GET"))
    SECURED.read(scope(*signed(b"", method="GET"), method="GET"))
    with pytest.raises(Unauthorized):
        SECURED.read(scope(*signed(b"", method="GET", key=b"o" * 32), method="GET"))
    OPEN.read(scope(*signed(b"", method="GET"), method="GET"))


def test_an_upload_must_be_signed() -> None:
    assert SECURED.upload(scope(*signed(STREAMED, method="PUT"), method="PUT")).node == "peer"
    with pytest.raises(Unauthorized):
        SECURED.upload(scope(method="PUT"))
    with pytest.raises(Unauthorized, match="secured mesh"):
        OPEN.upload(scope(*signed(STREAMED, method="PUT"), method="PUT"))

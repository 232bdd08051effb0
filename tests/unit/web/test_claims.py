"""Who a request says it comes from."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from viiwork_core.clock import SystemClock
from viiwork_core.errors import Unauthorized
from viiwork_core.mesh.greeting import Caller, read_caller
from viiwork_core.proxy.request import LARGE
from viiwork_core.security.signing import FORWARDED, STREAMED, TO, Signer, Verifier
from viiwork_core.testing.fake_clock import FakeClock
from viiwork_core.web.claims import MAX_NAMES, QUIET_S, Claims, Doubts

KEY = b"k" * 32
TARGET = "/v1/chat/completions"
SECURED = Claims(Verifier(KEY, node_id="me", clock=SystemClock()), lambda _: (), mode="secured")
OPEN = Claims(None, lambda node: {"peer": ["127.0.0.2", "10.0.0.7"]}.get(node, ()), node="me", mode="open")


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
    for headers, client in (
        ((FORWARDED, "peer"), "127.0.0.3"),
        ((FORWARDED, "stranger"), "127.0.0.2"),
        ((FORWARDED, "peer"), "no address"),
    ):
        assert hop(OPEN, scope(headers, client=client)) == "", "not believed, and still not forwarded again"


@pytest.mark.parametrize("client", ["10.0.0.7", "::ffff:10.0.0.7", "64:ff9b::10.0.0.7"])
def test_an_address_is_judged_by_what_is_embedded_in_it(client: str) -> None:
    assert hop(OPEN, scope((FORWARDED, "peer"), client=client)) == "peer"


def test_the_secret_before_this_one_proves_too() -> None:
    old = b"o" * 32
    both = Claims(Verifier(KEY, previous=(old,), node_id="me", clock=SystemClock()), lambda _: ())
    assert hop(both, scope(*signed(b"{}", key=old))) == hop(both, scope(*signed(b"{}"))) == "peer"


def test_a_name_that_is_not_proven_is_told_once_a_minute() -> None:
    clock = FakeClock()
    claims = Claims(None, lambda _: (), doubts=Doubts(clock))
    with capture_logs() as logs:
        for _ in range(3):
            hop(claims, scope((FORWARDED, "peer")))
        hop(claims, scope((FORWARDED, "other\x1b[1m")))
        clock.advance(QUIET_S)
        hop(claims, scope((FORWARDED, "peer")))
    assert [(log["claimed"], log["address"]) for log in logs] == [
        ("peer", "127.0.0.2"),
        ("other[1m", "127.0.0.2"),
        ("peer", "127.0.0.2"),
    ]


def test_a_refused_claim_is_told_with_the_reason_and_no_flood_of_names_is_kept() -> None:
    doubts = Doubts(FakeClock())
    claims = Claims(Verifier(KEY, node_id="me", clock=SystemClock()), lambda _: (), doubts=doubts)
    with capture_logs() as logs:
        for number in range(MAX_NAMES + 50):
            with pytest.raises(Unauthorized):
                hop(claims, scope((FORWARDED, f"n{number}")))
    assert len(logs) == MAX_NAMES + 50
    assert logs[0]["reason"] == "missing: X-Viiwork-Ts"
    assert len(doubts._told) == MAX_NAMES


@pytest.mark.parametrize(
    ("claims", "mode", "key", "name", "verdict"),
    [
        (SECURED, "secured", KEY, "default", ""),
        (SECURED, "secured", b"o" * 32, "default", "other secret"),
        (SECURED, "open", None, "default", "mesh mode mismatch"),
        (SECURED, "secured", KEY, "another", "other mesh name"),
        (OPEN, "open", None, "default", ""),
        (OPEN, "secured", KEY, "default", "mesh mode mismatch"),
    ],
)
def test_a_greeting_is_judged(claims: Claims, mode: str, key: bytes | None, name: str, verdict: str) -> None:
    caller = Caller(node="peer", mode=mode, name=name)
    path, _, query = caller.target().partition("?")
    proof = Signer(key, node="peer", clock=SystemClock()).sign("GET", caller.target(), [], b"") if key else []
    asked = {**scope(*proof, method="GET"), "path": path, "raw_path": path.encode(), "query_string": query.encode()}
    assert read_caller(query) == caller
    assert claims.verdict(asked, caller) == verdict


def test_anybody_may_read_and_a_wrong_secret_is_told() -> None:
    assert SECURED.read(scope(method="GET")) is None
    assert SECURED.read(scope(("X-Viiwork-Node", "peer"), method="GET")) is None
    assert SECURED.read(scope(*signed(b"", method="GET"), method="GET")) == "peer"
    with pytest.raises(Unauthorized):
        SECURED.read(scope(*signed(b"", method="GET", key=b"o" * 32), method="GET"))
    assert OPEN.read(scope(*signed(b"", method="GET"), method="GET")) == "peer"
    assert OPEN.read(scope(("X-Viiwork-Node", "peer"), method="GET", client="127.0.0.3")) is None


def test_an_upload_must_be_signed() -> None:
    assert SECURED.upload(scope(*signed(STREAMED, method="PUT"), method="PUT")) == "peer"
    with pytest.raises(Unauthorized):
        SECURED.upload(scope(method="PUT"))
    with pytest.raises(Unauthorized, match="secured mesh"):
        OPEN.upload(scope(*signed(STREAMED, method="PUT"), method="PUT"))


def test_in_an_open_mesh_uploads_come_from_a_member_s_address_and_only_where_that_is_wanted() -> None:
    wanted = replace(OPEN, open_uploads=True)
    assert wanted.upload(scope(("X-Viiwork-Node", "peer"), method="PUT")) == "peer"
    for headers, client in ([], "127.0.0.2"), ([("X-Viiwork-Node", "peer")], "127.0.0.3"):
        with pytest.raises(Unauthorized, match="members"):
            wanted.upload(scope(*headers, method="PUT", client=client))

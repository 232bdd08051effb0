"""The door and web pages: preflights, who may read, who may write, and names that lead here from elsewhere."""

from __future__ import annotations

import pytest
from door import CHAT, DOWN, STATUS, TOKEN, Door, Header, Reply

from viiwork_core.security.origins import Origins


def test_a_preflight_needs_no_key() -> None:
    wanted = [
        ("Access-Control-Request-Method", "POST"),
        ("Access-Control-Request-Headers", "authorization, x-stainless-os"),
    ]
    door = Door()
    reply = door.ask(CHAT, ("Origin", "http://localhost:3000"), *wanted, method="OPTIONS")
    assert reply.status == 204
    assert not door.through
    assert reply.headers["access-control-allow-origin"] == "http://localhost:3000"
    assert reply.headers["access-control-allow-methods"] == "GET, POST, OPTIONS"
    assert reply.headers["access-control-allow-headers"] == "authorization, x-stainless-os"
    assert reply.headers["access-control-max-age"] == "600"
    assert ("vary", "Origin") in reply.lines
    assert "access-control-allow-credentials" not in reply.headers


def test_a_preflight_of_another_page_is_refused() -> None:
    reply = Door().ask(
        CHAT, ("Origin", "https://evil.example"), ("Access-Control-Request-Method", "POST"), method="OPTIONS"
    )
    assert (reply.status, reply.code) == (403, "forbidden")
    assert ("vary", "Origin") in reply.lines
    assert not any(name.startswith("access-control") for name, _ in reply.lines)


@pytest.mark.parametrize("headers", ["x" * 3000, "a\u00e4", ""])
def test_headers_that_are_none_are_not_allowed(headers: str) -> None:
    wanted = [("Access-Control-Request-Method", "POST"), ("Access-Control-Request-Headers", headers)]
    reply = Door().ask(CHAT, ("Origin", "http://localhost"), *wanted, method="OPTIONS")
    assert reply.status == 204
    assert "access-control-allow-headers" not in reply.headers


@pytest.mark.parametrize("keyed", [True, False])
def test_an_answer_says_who_may_read_it_also_when_it_is_a_refusal(keyed: bool) -> None:
    door = Door(keyed=keyed)
    for origin, allowed in (("http://localhost:3000", True), ("https://evil.example", False)):
        reply = door.ask(STATUS, ("Origin", origin), method="GET")
        assert reply.status == (401 if keyed else 200)
        assert reply.headers.get("access-control-allow-origin") == (origin if allowed else None)
        assert ("X-Viiwork-Node" in reply.headers.get("access-control-expose-headers", "")) is allowed
        assert ("vary", "Origin") in reply.lines


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "QUERY"])
@pytest.mark.parametrize("path", [CHAT, DOWN, "/login", "/v1/nothing"])
@pytest.mark.parametrize("keyed", [True, False])
def test_another_page_writes_nowhere(method: str, path: str, keyed: bool) -> None:
    door = Door(keyed=keyed)
    shown = ("Authorization", f"Bearer {TOKEN}")
    reply = door.ask(path, ("Origin", "https://evil.example"), shown, method=method)
    assert (reply.status, reply.code) == (403, "forbidden")
    assert "api.cors.allow_origins" in reply.body.decode()
    assert not door.through


@pytest.mark.parametrize("path", ["/mesh", STATUS, "/v1/mesh/stream", "/login"])
def test_a_strange_name_on_this_machine_is_no_name_of_the_node(path: str) -> None:
    """DNS rebinding: the page's own name leads here, so that its requests have no Origin."""
    for client, keyed, status in (("127.0.0.1", False, 403), ("::1", False, 403), ("192.168.1.9", False, 200)):
        assert rebound(Door(keyed=keyed), path, client=client).status == status
    assert rebound(Door(keyed=True), "/login").status == 200


def rebound(door: Door, path: str, *headers: Header, method: str = "GET", client: str = "127.0.0.1") -> Reply:
    """A request that calls the node by the name of a page's own."""
    return door.ask(path, *headers, method=method, client=client, host="evil.example:8086")


def test_programs_may_call_the_node_what_they_like() -> None:
    for path in ("/v1/models", "/v1/models/qwen", "/health", "/metrics", "/api.json"):
        assert rebound(Door(keyed=False), path).status == 200
    assert rebound(Door(keyed=False), CHAT, method="POST").status == 200


def test_a_rebound_page_writes_nothing() -> None:
    page = ("Origin", "http://evil.example:8086")
    assert rebound(Door(keyed=False), CHAT, page, method="POST").status == 403
    assert rebound(Door(keyed=False, origins=Origins(["evil.example"])), CHAT, page, method="POST").status == 200

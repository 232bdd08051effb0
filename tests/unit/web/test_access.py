"""The door: who is asked for a key, what proves a caller without one, and what costs nothing."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import FrameType
from typing import Any

import hypothesis.strategies as st
import pytest
from door import CHAT, DOWN, KEY, SECRET, STATUS, TOKEN, Door, Header
from hypothesis import given, settings

from viiwork_core.clock import SystemClock
from viiwork_core.security.keys import SCOPE_KEY, ApiKey, digest_of, new_token
from viiwork_core.security.operator_token import HEADER as OPERATOR
from viiwork_core.security.origins import Origins
from viiwork_core.security.signing import FORWARDED, Signer
from viiwork_core.web.access import MOST_SIGNED, OPEN, STATIC

# Keys


@pytest.mark.parametrize(
    "shown",
    [
        [("Authorization", f"Bearer {TOKEN}")],
        [("authorization", f"bearer   {TOKEN} ")],
        [("x-api-key", TOKEN)],
        [("Authorization", "Basic YTpi"), ("X-Api-Key", TOKEN)],
        [("Authorization", "Bearer other"), ("X-Api-Key", TOKEN)],
    ],
)
@pytest.mark.parametrize("path", [CHAT, STATUS, "/metrics", "/v1/nothing"])
def test_a_key_lets_in_and_stands_in_the_scope(shown: list[Header], path: str) -> None:
    door = Door()
    assert door.ask(path, *shown, method="POST" if path == CHAT else "GET").status == 200
    assert door.through[0][SCOPE_KEY] == KEY


@pytest.mark.parametrize(
    "shown",
    [
        [],
        [("Authorization", TOKEN)],
        [("Authorization", "Bearer")],
        [("Authorization", f"Bearer {TOKEN}x")],
        [("Authorization", f"Basic {TOKEN}")],
        [("X-Api-Key", "ä")],
        [("Cookie", f"viiwork-box={TOKEN}")],
        [(OPERATOR, "other")],
        [(OPERATOR, "ä")],
        [(FORWARDED, "beta")],
        [("X-Viiwork-Auth", "v2=AAAA"), ("X-Viiwork-Node", "beta")],
        [("X-Forwarded-For", "127.0.0.1")],
    ],
)
@pytest.mark.parametrize(("path", "method"), [(CHAT, "POST"), (STATUS, "GET"), ("/metrics", "HEAD"), ("/x", "OPTIONS")])
def test_without_one_nothing_gets_through(shown: list[Header], path: str, method: str) -> None:
    door = Door()
    reply = door.ask(path, *shown, method=method, client="127.0.0.1")
    assert (reply.status, reply.code) == (401, "invalid_api_key")
    assert reply.headers["www-authenticate"] == 'Bearer realm="viiwork"'
    assert reply.headers["x-request-id"]
    assert not door.through
    assert TOKEN.encode() not in reply.body


@pytest.mark.parametrize("path", ["/health", "/login", "/logout", "/static/abc/style.css", "/v1/mesh/greeting"])
def test_what_is_open_to_all(path: str) -> None:
    door = Door()
    assert door.ask(path, method="GET").status == 200
    assert SCOPE_KEY not in door.through[0]


@pytest.mark.parametrize("path", ["/healthx", "/health/", "/static", "/loginx", "//login", "/v1/mesh/greeting/x"])
def test_and_nothing_beside_it(path: str) -> None:
    assert Door().ask(path, method="GET").status == 401


@settings(deadline=None, database=None)
@given(
    path=st.lists(st.sampled_from(["health", "login", "static", "v1", "status", "..", ".", "", "%2e%2e", "\\", ";"])),
    method=st.sampled_from(["GET", "HEAD", "OPTIONS", "POST", "PUT", "TRACE", "get"]),
)
def test_no_path_but_those_that_are_open_gets_through(path: list[str], method: str) -> None:
    door, asked = Door(), "/" + "/".join(path)
    is_open = asked in OPEN or asked.startswith(STATIC)
    assert (door.ask(asked, method=method).status == 200) == is_open
    assert bool(door.through) == is_open


def test_a_person_is_led_to_the_login() -> None:
    reply = Door().ask("/mesh", method="GET", query="model=a&x=%2F")
    assert reply.status == 303
    assert reply.headers["location"] == "/login?next=/mesh%3Fmodel%3Da%26x%3D%252F"
    assert reply.headers["cache-control"] == "no-store"
    assert Door().ask("/mesh", method="POST").status == 401


# Who needs none


def signed(method: str, target: str, body: bytes = b"", *headers: Header, key: bytes = SECRET) -> list[Header]:
    made = [*headers, ("X-Viiwork-To", "me")]
    return [*made, *Signer(key, node="beta", clock=SystemClock()).sign(method, target, made, body)]


def test_a_member_reads_with_its_signature_and_the_handler_may_look_again() -> None:
    door = Door(secured=True)
    assert door.ask(STATUS, *signed("GET", STATUS), method="GET").status == 200
    assert door.claims.read(door.through[0]) == "beta"


@pytest.mark.parametrize("key", [SECRET, b"o" * 32])
def test_a_signature_counts_once_and_with_the_right_secret(key: bytes) -> None:
    door, headers = Door(secured=True), signed("GET", STATUS, key=key)
    assert door.ask(STATUS, *headers, method="GET").status == (200 if key == SECRET else 401)
    again = door.ask(STATUS, *headers, method="GET")
    assert (again.status, again.code) == (401, "unproven")
    assert door.ask(STATUS, *signed("GET", "/metrics"), method="GET").status == 401


def test_a_forward_is_left_to_who_reads_its_body() -> None:
    assert Door(secured=True).ask(CHAT, (FORWARDED, "beta")).status == 200
    assert Door(secured=True).ask("/v1/nothing", (FORWARDED, "beta")).status == 401
    assert Door(secured=False).ask(CHAT, (FORWARDED, "beta")).status == 401


def test_a_question_that_the_operator_has_signed_needs_no_key() -> None:
    door, body = Door(secured=True), b'{"model": "m"}'
    door.reads = True
    headers = signed("POST", CHAT, body)
    assert door.ask(CHAT, *headers, body=body).status == 200
    assert door.bodies == [body]
    assert SCOPE_KEY not in door.through[0]
    again = door.ask(CHAT, *headers, body=body)
    assert (again.status, again.code) == (401, "unproven")


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        (CHAT, signed("POST", CHAT, b"other")),
        (CHAT, signed("POST", "/v1/embeddings", b"{}")),
        (CHAT, signed("POST", CHAT, b"{}", key=b"o" * 32)),
        (CHAT, [("X-Viiwork-Auth", "v2=AAAA")]),
        # A key beside it does not help: a wrong proof is told.
        (CHAT, [("X-Viiwork-Auth", "v2=AAAA"), ("Authorization", f"Bearer {TOKEN}")]),
    ],
)
def test_a_question_signed_otherwise_is_refused(path: str, headers: list[Header]) -> None:
    door = Door(secured=True)
    reply = door.ask(path, *headers, body=b"{}")
    assert (reply.status, reply.code, door.through) == (401, "unproven", [])


def test_a_signed_question_is_a_small_one() -> None:
    body = b" " * (MOST_SIGNED + 1)
    reply = Door(secured=True).ask(CHAT, *signed("POST", CHAT, body), body=body)
    assert reply.status == 413
    assert b"api.max_body" not in reply.body


def test_a_write_that_is_signed_is_left_to_its_handler_and_only_where_that_proves() -> None:
    door = Door(secured=True)
    assert door.ask(DOWN, *signed("POST", DOWN)).status == 200
    assert door.ask("/v1/else", *signed("POST", "/v1/else")).status == 401
    assert door.ask(DOWN).status == 401


def test_the_operator_s_token_opens_everything_here() -> None:
    for path, method in ((CHAT, "POST"), (STATUS, "GET"), (DOWN, "POST")):
        door = Door()
        assert door.ask(path, (OPERATOR, "token"), method=method, client="127.0.0.1").status == 200
        assert SCOPE_KEY not in door.through[0]


def test_no_client_s_key_makes_an_operator() -> None:
    reply = Door().ask(DOWN, ("Authorization", f"Bearer {TOKEN}"), client="127.0.0.1")
    assert (reply.status, reply.code) == (403, "forbidden")


def test_an_empty_token_is_none() -> None:
    door = Door()
    rules = door.access._rules
    object.__setattr__(rules, "operator", "")
    assert door.ask(STATUS, (OPERATOR, ""), method="GET").status == 401


# The cookie


def login(door: Door) -> Header:
    return "Cookie", f"a=b; viiwork-other=x; viiwork-box={door.logins.begin(KEY)}; c=d"


@pytest.mark.parametrize("origin", [None, "http://node:8086"])
def test_a_login_lets_this_nodes_pages_in(origin: str | None) -> None:
    door = Door()
    assert door.ask(CHAT, login(door), *([("Origin", origin)] if origin else [])).status == 200
    assert door.through[0][SCOPE_KEY] == KEY


@pytest.mark.parametrize("origin", ["http://node:3000", "http://localhost:8086", "https://node", "null"])
def test_and_no_other_page_s(origin: str) -> None:
    door = Door(origins=Origins(["*"]))
    assert door.ask(CHAT, login(door), ("Origin", origin)).status == 401
    assert door.ask(STATUS, login(door), ("Origin", origin), method="GET").status == 401


def test_a_revoked_key_s_login_is_over() -> None:
    door = Door()
    cookie = login(door)
    door.keys.replace([ApiKey("bob", digest_of(new_token()))])
    assert door.ask(CHAT, cookie).status == 401


def test_a_cookie_header_without_end_is_not_read() -> None:
    door = Door()
    name, value = login(door)
    assert door.ask(CHAT, (name, f"x={'y' * 9000}; {value}")).status == 401


# What it costs


def calls(door: Door, *headers: Header) -> list[str]:
    """The Python functions that one request runs through, up to the inner application."""
    found: list[str] = []

    def saw(frame: FrameType, event: str, argument: Any) -> None:
        del argument
        code = frame.f_code
        if event == "call" and ("viiwork_core" in code.co_filename or code.co_name == "_inner"):
            found.append(code.co_name)

    async def send(message: Any) -> None:
        del message

    raw = [(b"host", b"node"), *((name.lower().encode(), value.encode()) for name, value in headers)]
    scope = {"type": "http", "method": "POST", "path": CHAT, "headers": raw, "client": ("127.0.0.1", 1)}
    running = door.access(scope, None, send)  # type: ignore[arg-type]  # nothing is received
    sys.setprofile(saw)
    try:
        running.send(None)
    except StopIteration:
        pass
    finally:
        sys.setprofile(None)
    return found[: found.index("_inner") + 1] if "_inner" in found else found


@pytest.mark.parametrize(
    "headers", [[], [("Authorization", "Bearer x"), ("Cookie", "viiwork-box=x"), ("X-Session-Id", "s")]]
)
def test_an_open_api_looks_for_an_origin_and_at_nothing_else(headers: Sequence[Header]) -> None:
    assert calls(Door(keyed=False), *headers) == ["__call__", "first", "__bool__", "_inner"]

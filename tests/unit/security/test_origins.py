"""Which pages may use the API, and by which names a browser may call a node."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from viiwork_core.security.origins import OriginPattern, Origins, is_same

HOST = "node:8086"


@pytest.mark.parametrize(
    ("pattern", "origin", "fits"),
    [
        ("https://chat.example.org", "https://chat.example.org", True),
        ("https://chat.example.org", "https://CHAT.example.org", True),
        ("https://chat.example.org", "http://chat.example.org", False),
        ("https://chat.example.org", "https://chat.example.org:8443", False),
        ("https://chat.example.org", "https://chat.example.org.evil.example", False),
        ("https://chat.example.org:8443", "https://chat.example.org:8443", True),
        ("http://localhost:*", "http://localhost:5173", True),
        ("http://localhost:*", "https://localhost:5173", False),
        ("chat.example.org", "http://chat.example.org:3000", True),
        ("chat.example.org", "https://chat.example.org", True),
        ("chat.example.org:3000", "https://chat.example.org", False),
        ("chat.example.org", "https://x.chat.example.org", False),
        ("*.example.org", "https://chat.example.org", True),
        ("*.example.org", "https://a.b.example.org", True),
        ("*.example.org", "https://example.org", False),
        ("*.example.org", "https://evilexample.org", False),
        ("https://*.example.org", "http://chat.example.org", False),
        ("[2001:db8::7]", "http://[2001:db8::7]:3000", True),
        ("chrome-extension://abcdef", "chrome-extension://abcdef", True),
        ("chrome-extension://abcdef", "chrome-extension://other", False),
        ("*", "https://anything.example", True),
        ("*", "null", True),
        ("localhost", "null", False),
    ],
)
def test_a_list_is_used_as_it_is_written(pattern: str, origin: str, fits: bool) -> None:
    assert Origins([pattern]).shares(origin, HOST) is fits


@pytest.mark.parametrize(
    "text",
    [
        *("", "a b", "https://", "https://a.b/", "https://a.b/path", "a.b:0", "a.b:70000", "*.", "**.a", "http://*"),
        *("-a.b", ".a.b", "[::1", "[zz]", "user@host", "a.b?x", "*.*"),
    ],
)
def test_what_is_no_origin_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must"):
        OriginPattern.parse(text)


@pytest.mark.parametrize(
    ("origin", "host", "shares"),
    [
        ("http://localhost:3000", HOST, True),
        ("https://127.0.0.1", HOST, True),
        ("http://[::1]:1", HOST, True),
        ("http://localhost.evil.example", HOST, False),
        ("http://node:3000", HOST, False),
        ("http://100.64.1.2:3000", HOST, True),
        ("http://100.128.1.2", HOST, False),
        ("http://[fd7a:115c:a1e0::1]", HOST, True),
        ("https://a.tail12.ts.net", "b.tail12.ts.net:8086", True),
        ("https://a.tail13.ts.net", "b.tail12.ts.net:8086", False),
        ("https://tail12.ts.net", "ts.net", False),
        ("https://a.tail12.ts.net", HOST, False),
        ("https://evil.example", "evil.example", False),
        ("file://", HOST, False),
        ("null", HOST, False),
        ("ftp://localhost", HOST, False),
        ("http://[::1", HOST, False),
        ("http://localhost:port", HOST, False),
    ],
)
def test_what_may_read_when_nothing_is_listed(origin: str, host: str, shares: bool) -> None:
    assert Origins().shares(origin, host) is shares


def test_an_empty_list_is_no_page_at_all() -> None:
    none = Origins([])
    assert not any(none.shares(one, HOST) for one in ("http://localhost", "http://100.64.1.2", "http://node:8086"))
    assert none.may_write("http://node:8086", HOST, local=True)


def test_addresses_of_a_tailnet_can_be_left_out() -> None:
    assert Origins(["a.b"]).shares("http://100.64.1.2", HOST)
    assert not Origins(["a.b"], tailnet=False).shares("http://100.64.1.2", HOST)


@pytest.mark.parametrize(
    ("host", "strange"),
    [("evil.example", True), ("evil.example.", True), ("evil.example:8086", True), ("localhost.evil.example", True)]
    + [(host, False) for host in ("node", "localhost:1", "127.0.0.1", "[::1]:8086", "192.168.1.9", "a.localhost", "")]
    + [(host, False) for host in ("node.local", "host.docker.internal:8086", "node.home.arpa", "a.tail12.ts.net")],
)
def test_a_public_name_that_nobody_spoke_of_is_strange(host: str, strange: bool) -> None:
    assert Origins().is_strange(host or None) is strange
    assert not Origins(["https://evil.example", "evil.example.", "*.evil.example"]).is_strange(host or None)


def test_a_strange_name_gives_a_page_no_right_to_write_on_the_same_machine() -> None:
    page, host = "http://evil.example:8086", "evil.example:8086"
    assert not Origins().may_write(page, host, local=True)
    assert Origins().may_write(page, host, local=False)
    assert Origins(["http://evil.example:8086"]).may_write(page, host, local=True)


@pytest.mark.parametrize(
    ("origin", "host", "same"),
    [
        ("http://node:8086", "node:8086", True),
        ("http://NODE:8086", "node:8086", True),
        ("https://node", "node", True),
        ("http://node:3000", "node:8086", False),
        ("http://node", "node:8086", False),
        ("http://other:8086", "node:8086", False),
        ("null", "node:8086", False),
        ("http://node:8086", None, False),
    ],
)
def test_the_same_page_has_host_and_port(origin: str, host: str | None, same: bool) -> None:
    assert is_same(origin, host) is same


@given(st.text(max_size=100), st.text(max_size=100))
def test_any_text_is_judged(origin: str, host: str) -> None:
    for rules in (Origins(), Origins([]), Origins(["*.example.org"])):
        assert rules.shares(origin, host) in (True, False)
        assert rules.may_write(origin, host, local=True) in (True, False)
    assert is_same(origin, host) in (True, False)

"""Headers: which go where."""

from __future__ import annotations

import pytest

from viiwork_core.proxy.headers import Raw, first, outgoing, returning


@pytest.mark.parametrize(
    "name",
    [
        b"Authorization",
        b"Proxy-Authorization",
        b"Cookie",
        b"X-API-Key",
        b"Api-Key",
        b"Origin",
        b"Referer",
        b"Host",
        b"Content-Length",
        b"Transfer-Encoding",
        b"TE",
        b"Upgrade",
        b"Keep-Alive",
        b"Expect",
        b"Accept-Encoding",
        b"X-Request-Id",
        b"X-Session-Id",
        b"X-Session-Affinity",
        b"X-Viiwork-Forwarded",
        b"X-Viiwork-Anything",
        b"Access-Control-Request-Headers",
        b"Forwarded",
        b"X-Forwarded-For",
        b"X-Forwarded-Proto",
        b"X-Real-IP",
        b"Via",
    ],
)
def test_what_names_the_client_or_the_hop_does_not_go_on(name: bytes) -> None:
    assert outgoing([(name, b"secret"), (b"X-Stays", b"1")]) == [("x-stays", "1")]


def test_what_connection_names_is_for_this_hop_only() -> None:
    sent: list[Raw] = [
        (b"Connection", b"close, X-Mine"),
        (b"connection", b"x-too"),
        (b"X-Mine", b"1"),
        (b"X-Too", b"2"),
    ]
    assert outgoing(sent) == []
    assert returning([*sent, (b"X-Stays", b"3")], from_peer=False, extra={}) == [(b"x-stays", b"3")]


def test_one_more_may_be_kept_back() -> None:
    sent: list[Raw] = [(b"X-Engine-Session", b"somebody else's"), (b"X-Stays", b"1")]
    assert outgoing(sent, without="X-Engine-Session") == [("x-stays", "1")]


def test_values_keep_their_bytes_where_they_are_text() -> None:
    ((_, value),) = outgoing([(b"X-Name", "Jöte".encode())])
    assert value.encode() == "Jöte".encode()
    assert outgoing([(b"X-Name", b"J\xf6te")]) == [("x-name", "Jöte")]


@pytest.mark.parametrize("name", [b"Set-Cookie", b"Server", b"Date", b"Connection", b"Transfer-Encoding"])
def test_what_is_the_engine_s_own_does_not_come_back(name: bytes) -> None:
    assert returning([(name, b"x"), (b"X-Stays", b"1")], from_peer=False, extra={}) == [(b"x-stays", b"1")]


def test_an_engine_does_not_speak_for_the_node_and_a_peer_does() -> None:
    came: list[Raw] = [(b"X-Viiwork-Node", b"b"), (b"X-Gpu-Backend", b"m/0"), (b"X-Viiwork-Queued-Ms", b"5")]
    own = {"X-Viiwork-Queued-Ms": "7", "X-Request-Id": "r"}
    assert returning(came, from_peer=False, extra=own) == [(b"x-viiwork-queued-ms", b"7"), (b"x-request-id", b"r")]
    assert returning(came, from_peer=True, extra=own) == [
        (b"x-viiwork-node", b"b"),
        (b"x-gpu-backend", b"m/0"),
        (b"x-viiwork-queued-ms", b"7"),
        (b"x-request-id", b"r"),
    ]


def test_cross_origin_permissions_are_not_the_engine_s_to_give() -> None:
    came: list[Raw] = [(b"Access-Control-Allow-Origin", b"*"), (b"Vary", b"Origin, Accept-Encoding")]
    assert returning(came, from_peer=False, extra={}) == [(b"vary", b"Accept-Encoding")]


def test_the_first_value_that_says_something() -> None:
    headers: list[Raw] = [(b"X-One", b"  a "), (b"X-One", b"b"), (b"X-Blank", b"  ")]
    assert first(headers, b"x-one") == "a"
    assert first(headers, b"x-blank") is None
    assert first(headers, b"x-none") is None

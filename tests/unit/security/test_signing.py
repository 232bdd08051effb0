"""A request is proven only when it is whole, in time, meant for this process, and new."""

from __future__ import annotations

import base64
import hmac
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from viiwork_core.errors import Unauthorized
from viiwork_core.security.signing import (
    NONCE_LIFE_S,
    SKEW_S,
    STREAMED,
    Digest,
    Signed,
    Signer,
    Verifier,
    digest,
    header_text,
    strip_mesh_headers,
)

KEY = b"k" * 32
NOW = 1_800_000_000.0
BODY = b'{"model":"m"}'
TARGET = "/v1/chat/completions?x=1"

Header = tuple[str, str]


@dataclass
class HandClock:
    """Both clocks, moved by hand."""

    now: float = NOW
    passed: float = 0.0

    def wall(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.passed


def signed(
    *others: Header, key: bytes = KEY, node: str = "a", wall: float = NOW, body: bytes | Digest = BODY
) -> list[Header]:
    """The X-Viiwork headers of a request."""
    return [*others, *Signer(key, node=node, clock=HandClock(wall)).sign("POST", TARGET, others, body)]


def verifier(clock: HandClock | None = None, **more: int) -> Verifier:
    return Verifier(KEY, node_id="me", clock=clock or HandClock(), **more)


def changed(headers: list[Header], name: str, value: str | None) -> list[Header]:
    """`headers` with one value changed, or removed for None."""
    kept = [(k, v) for k, v in headers if k.lower() != name.lower()]
    return kept if value is None else [*kept, (name, value)]


def refusal(headers: list[Header], **call: object) -> str:
    """The first word of the reason why `headers` are refused."""
    clock = call.pop("clock", None)
    assert clock is None or isinstance(clock, HandClock)
    request: dict[str, object] = {"method": "POST", "target": TARGET, "headers": headers, "body": BODY, **call}
    with pytest.raises(Unauthorized) as caught:
        verifier(clock).verify(**request)  # type: ignore[arg-type]  # the table mixes types
    assert caught.value.retry == "elsewhere"
    return caught.value.message.split(":")[0]


def test_a_signed_request_is_proven() -> None:
    assert verifier().verify("POST", TARGET, signed(), BODY) == Signed(node="a", forwarded=None)


def test_a_forward_says_where_it_comes_from() -> None:
    headers = signed(("X-Viiwork-Forwarded", "a"))
    assert verifier().verify("POST", TARGET, headers, BODY) == Signed(node="a", forwarded="a")


def test_a_signer_can_name_no_origin_but_itself() -> None:
    assert refusal(signed(("X-Viiwork-Forwarded", "b"))) == "origin"


@pytest.mark.parametrize("name", ["X-Viiwork-Node", "X-Viiwork-Ts", "X-Viiwork-Nonce", "X-Viiwork-Auth"])
def test_each_part_is_needed_once(name: str) -> None:
    headers = signed()
    assert refusal(changed(headers, name, None)) == "missing"
    assert refusal(changed(headers, name, "")) == "missing"
    assert refusal([*headers, *((k, v) for k, v in headers if k == name)]) == "malformed"


@pytest.mark.parametrize(
    ("headers", "call"),
    [
        pytest.param(signed(key=b"x" * 32), {}, id="another secret"),
        pytest.param(signed(), {"method": "PUT"}, id="method"),
        pytest.param(signed(), {"target": TARGET + "2"}, id="query"),
        pytest.param(signed(), {"target": "/v1/capacity"}, id="path"),
        pytest.param(signed(), {"body": BODY + b" "}, id="body"),
        pytest.param(signed(), {"body": b""}, id="body taken away"),
        pytest.param(signed(body=b""), {}, id="body added"),
        pytest.param(signed(body=STREAMED), {}, id="streamed where a digest is due"),
        pytest.param(signed(), {"body": STREAMED}, id="digest where a stream is due"),
        pytest.param(changed(signed(), "X-Viiwork-Node", "b"), {}, id="node"),
        pytest.param(changed(signed(), "X-Viiwork-Ts", str(int(NOW) + 1)), {}, id="time"),
        pytest.param(changed(signed(), "X-Viiwork-Nonce", "A" * 22), {}, id="nonce"),
        pytest.param(changed(signed(), "X-Viiwork-Auth", "v2=AAAA"), {}, id="signature"),
        pytest.param(changed(signed(), "X-Viiwork-Auth", "vä\udcff"), {}, id="signature of any bytes"),
        pytest.param(changed(signed(("X-Viiwork-Session", "s")), "X-Viiwork-Session", "t"), {}, id="other header"),
        pytest.param(changed(signed(("X-Viiwork-Session", "s")), "X-Viiwork-Session", None), {}, id="header removed"),
        pytest.param([*signed(), ("x-viiwork-forwarded", "a")], {}, id="header added"),
        pytest.param([*signed(("X-Viiwork-S", "s")), ("x-viiwork-s", "s")], {}, id="header doubled"),
        pytest.param(changed(signed(("X-Viiwork-To", "you")), "X-Viiwork-To", "me"), {}, id="addressee"),
    ],
)
def test_any_change_is_noticed(headers: list[Header], call: dict[str, object]) -> None:
    assert refusal(headers, **call) == "secret"


def test_what_travel_may_change_is_not_signed() -> None:
    headers = [(name.upper(), f" {value} ") for name, value in reversed(signed(("X-Viiwork-Session", "s")))]
    assert verifier().verify("post", TARGET, [*headers, ("Host", "any")], BODY).node == "a"


def test_a_request_for_another_process_is_refused() -> None:
    assert verifier().verify("POST", TARGET, signed(("X-Viiwork-To", "me")), BODY).node == "a"
    assert refusal(signed(("X-Viiwork-To", "an earlier run"))) == "addressee"


@pytest.mark.parametrize("off", [0, SKEW_S, -SKEW_S])
def test_clocks_may_differ_by_the_skew(off: int) -> None:
    assert verifier().verify("POST", TARGET, signed(wall=NOW + off), BODY).node == "a"


@pytest.mark.parametrize("off", [SKEW_S + 1, -SKEW_S - 1, 10**15, -(10**15)])
def test_a_request_from_another_time_is_refused(off: int) -> None:
    assert refusal(signed(wall=NOW + off)) == "skew"


@pytest.mark.parametrize(
    ("ts", "reason"),
    [
        ("9" * 20, "malformed"),
        ("9" * 9999, "malformed"),
        ("1e9", "malformed"),
        ("nan", "malformed"),
        ("١٢٣", "malformed"),
        ("1800000000\n", "secret"),
    ],
)
def test_extreme_times_are_refused_not_overflowed(ts: str, reason: str) -> None:
    assert refusal(changed(signed(wall=NOW + 1), "X-Viiwork-Ts", ts)) == reason


@pytest.mark.parametrize("wall", [9.9e18, -9.9e18])
def test_a_time_as_far_off_as_can_be_written_is_skew(wall: float) -> None:
    assert refusal(signed(wall=wall)) == "skew"


def test_the_skew_of_a_proven_member_is_told_with_its_name() -> None:
    with pytest.raises(Unauthorized, match="differ by 300 s, 120 s are allowed; that of a is behind this node's"):
        verifier().verify("POST", TARGET, signed(wall=NOW - 300), BODY)
    assert refusal(signed(wall=NOW - 300, key=b"o" * 32)) == "secret", "of a stranger's clock nothing is said"


def test_the_key_before_this_one_is_believed_and_its_nonces_are_remembered() -> None:
    old = b"o" * 32
    check = Verifier(KEY, previous=(old,), node_id="me", clock=HandClock())
    for headers in (signed(key=old), signed()):
        assert check.verify("POST", TARGET, headers, BODY).node == "a"
        with pytest.raises(Unauthorized, match="replayed"):
            check.verify("POST", TARGET, headers, BODY)
    with pytest.raises(Unauthorized, match="secret"):
        check.verify("POST", TARGET, signed(key=b"x" * 32), BODY)


def test_a_signer_follows_its_ring() -> None:
    keys = [KEY]
    signer = Signer(lambda: keys[-1], node="a", clock=HandClock())
    assert verifier().verify("POST", TARGET, signer.sign("POST", TARGET, [], BODY), BODY).node == "a"
    keys.append(b"n" * 32)
    assert refusal(signer.sign("POST", TARGET, [], BODY)) == "secret"


def test_a_request_passes_once() -> None:
    clock, headers = HandClock(), signed(wall=NOW + SKEW_S)
    check = verifier(clock)
    check.verify("POST", TARGET, headers, BODY)
    clock.passed, clock.now = NONCE_LIFE_S, NOW + NONCE_LIFE_S
    with pytest.raises(Unauthorized, match="nonce replayed"):
        check.verify("POST", TARGET, headers, BODY)


def test_a_nonce_is_remembered_until_its_time_refuses_it() -> None:
    clock, headers = HandClock(), signed(wall=NOW + SKEW_S)
    check = verifier(clock)
    check.verify("POST", TARGET, headers, BODY)
    clock.passed, clock.now = NONCE_LIFE_S + 1, NOW + NONCE_LIFE_S + 1
    with pytest.raises(Unauthorized, match="skew"):
        check.verify("POST", TARGET, headers, BODY)


def test_a_full_memory_refuses_rather_than_forgets() -> None:
    clock = HandClock()
    check = verifier(clock, nonces=2)
    first = signed()
    for headers in (first, signed()):
        check.verify("POST", TARGET, headers, BODY)
    with pytest.raises(Unauthorized, match="nonce cache full"):
        check.verify("POST", TARGET, signed(), BODY)
    with pytest.raises(Unauthorized, match="nonce replayed"):
        check.verify("POST", TARGET, first, BODY)
    clock.passed = NONCE_LIFE_S + 1
    assert check.verify("POST", TARGET, signed(), BODY).node == "a"


def test_who_lacks_the_secret_cannot_fill_the_memory() -> None:
    check = verifier(nonces=1)
    for _ in range(3):
        with pytest.raises(Unauthorized, match="secret"):
            check.verify("POST", TARGET, signed(key=b"x" * 32), BODY)
    assert check.verify("POST", TARGET, signed(), BODY).node == "a"


def test_a_digest_made_before_stands_for_the_body() -> None:
    assert verifier().verify("POST", TARGET, signed(body=digest(BODY)), BODY).node == "a"
    assert verifier().verify("POST", TARGET, signed(), digest(BODY)).node == "a"


def test_a_stream_is_proven_where_streams_are_taken() -> None:
    assert verifier().verify("POST", TARGET, signed(body=STREAMED), STREAMED).node == "a"


@pytest.mark.parametrize("value", ["a\nb", "a\rb"])
def test_a_line_break_cannot_be_signed(value: str) -> None:
    with pytest.raises(Unauthorized, match="line break"):
        signed(("X-Viiwork-Session", value))


def test_the_form_of_a_signature_is_fixed() -> None:
    lines = b"v2\nGET\n/v1/capacity\n1800000000\nAAAAAAAAAAAAAAAAAAAAAA\na\n\nx-viiwork-to:me"
    auth = "v2=" + base64.urlsafe_b64encode(hmac.digest(KEY, lines, "sha256")).decode().rstrip("=")
    headers = [
        ("X-Viiwork-Node", "a"),
        ("X-Viiwork-Ts", "1800000000"),
        ("X-Viiwork-Nonce", "A" * 22),
        ("X-Viiwork-To", "me"),
        ("X-Viiwork-Auth", auth),
    ]
    assert verifier().verify("GET", "/v1/capacity", headers, b"") == Signed(node="a", forwarded=None)


def test_mesh_headers_are_taken_off() -> None:
    assert strip_mesh_headers([*signed(), ("x-viiwork-Any", "1"), ("Accept", "*/*")]) == [("Accept", "*/*")]


@given(st.binary(max_size=200), st.lists(st.tuples(st.sampled_from(["x-viiwork-a", "x-viiwork-b"]), st.binary())))
def test_what_arrives_as_it_was_signed_is_proven(body: bytes, raw: list[tuple[bytes | str, bytes]]) -> None:
    others = header_text((str(name).encode(), value) for name, value in raw if not {10, 13} & set(value))
    headers = signed(*others, body=body)
    on_the_wire = [(name.encode(), value.encode("utf-8", "surrogateescape")) for name, value in headers]
    assert verifier().verify("POST", TARGET, header_text(on_the_wire), body).node == "a"

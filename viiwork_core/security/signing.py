"""Signatures of requests between members: who sent this, unchanged, now, to this node, and for the first time.

A signed request carries X-Viiwork-Node, -Ts, -Nonce and -Auth. The signature is "v2=" and the base64url of an
HMAC-SHA256 over these lines:

    v2 / METHOD / path?query / ts / nonce / node / hex sha256 of the body, "" for none / NAME:VALUE of every other
    X-Viiwork-* header, names in lowercase, sorted

Why not v1, which other programs of this family use: it left the headers out, so that whoever sat between two members
could change the origin, the session or the request id of a proven forward. It also did not say whom a request was
meant for, so that a recorded one could be replayed to another member, or to the same one after a restart had emptied
its nonces. Here X-Viiwork-To, covered like any other header, names the receiving process.

The body of a streamed upload is not known when its headers are sent. It is signed as the word "streamed" and proven
frame by frame by the code that reads it. The word never travels: the receiver puts it in place of the digest on the
routes that take streams, and only there, so a sender cannot choose to leave a body unsigned.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NewType

from viiwork_core.clock import Clock
from viiwork_core.errors import Unauthorized

FORWARDED: Final = "X-Viiwork-Forwarded"
NODE: Final = "X-Viiwork-Node"
TS: Final = "X-Viiwork-Ts"
NONCE: Final = "X-Viiwork-Nonce"
AUTH: Final = "X-Viiwork-Auth"
TO: Final = "X-Viiwork-To"

SKEW_S: Final = 120
NONCE_LIFE_S: Final = 2 * SKEW_S
"""A request may come from a clock that is ahead by the whole skew; it must be remembered until that has passed."""

NONCES: Final = 1 << 19
"""Over 2,000 proven requests a second for the whole life of a nonce; at most about 110 MB."""

Headers = Iterable[tuple[str, str]]

Digest = NewType("Digest", str)
"""What stands for a body in the signature: made by `digest`, or STREAMED."""

STREAMED: Final = Digest("streamed")

_PREFIX = "x-viiwork-"
_OWN_LINES = frozenset(name.lower() for name in (NODE, TS, NONCE, AUTH))
_TS = re.compile(r"-?[0-9]{1,19}", re.ASCII)
_NONCE = re.compile(r"[A-Za-z0-9_-]{16,64}")


def digest(body: bytes) -> Digest:
    """The digest of a body; a body over 1 MiB belongs in a thread (1 ms a MiB)."""
    return Digest(hashlib.sha256(body).hexdigest() if body else "")


def header_text(raw: Iterable[tuple[bytes, bytes]]) -> list[tuple[str, str]]:
    """An ASGI scope's headers in the form that this module takes; no byte is lost, whatever its encoding."""
    return [(name.decode("latin-1"), value.decode("utf-8", "surrogateescape")) for name, value in raw]


def strip_mesh_headers(headers: Headers) -> list[tuple[str, str]]:
    """`headers` without any X-Viiwork-*: what may go on to an engine, or stand in for a client's request."""
    return [(name, value) for name, value in headers if not name.lower().startswith(_PREFIX)]


@dataclass(frozen=True, slots=True)
class Signed:
    """A proven request."""

    node: str
    """The member that signed it."""

    forwarded: str | None
    """The same name when the request is a forward, which must not be forwarded again; None: it is not."""


class Signer:
    """Signs requests as `node`. Safe to use from any thread."""

    def __init__(self, key: bytes | Callable[[], bytes], *, node: str, clock: Clock) -> None:
        """`key`: the key, or what tells the one in use when it is called."""
        self._key: Callable[[], bytes] = (lambda: key) if isinstance(key, bytes) else key
        self._node = node
        self._clock = clock

    def sign(self, method: str, target: str, headers: Headers, body: bytes | Digest) -> list[tuple[str, str]]:
        """The headers to add to a request.

        `target` is the path and query exactly as it goes out, `headers` are all that the request carries already.
        """
        ts, nonce = str(int(self._clock.wall())), secrets.token_urlsafe(16)
        lines = _lines(method, target, (ts, nonce, self._node), _digest_of(body), headers)
        return [(NODE, self._node), (TS, ts), (NONCE, nonce), (AUTH, _auth(self._key(), lines))]


class Verifier:
    """Checks requests that name a member. One per node, used from one thread: it remembers nonces."""

    def __init__(
        self, key: bytes, *, node_id: str, clock: Clock, previous: Sequence[bytes] = (), nonces: int = NONCES
    ) -> None:
        """`previous`: keys that are still believed while the mesh changes its secret."""
        self._keys = (key, *previous)
        self._node_id = node_id
        self._clock = clock
        self._nonces = _Nonces(nonces, clock)

    def verify(self, method: str, target: str, headers: Headers, body: bytes | Digest) -> Signed:
        """Prove a request. Pass STREAMED as `body` on routes that read a stream, and on no other.

        Raises Unauthorized with the reason: a header missing, malformed or doubled, skew, secret (which is also what
        any change to the request looks like), another addressee, or a nonce seen before.
        """
        fields = _fields(headers)
        ts, nonce, node = _required(fields, TS), _required(fields, NONCE), _required(fields, NODE)
        auth = _required(fields, AUTH)
        _check_form(ts, nonce)
        lines = _lines(method, target, (ts, nonce, node), _digest_of(body), fields)
        # All are tried, so that the time says nothing about which one fits.
        fits = [hmac.compare_digest(_encode(auth), _encode(_auth(key, lines))) for key in self._keys]
        if not any(fits):
            raise Unauthorized("secret: the signature does not fit the request; is this the same mesh secret?")
        # Behind the proof, so that what is said about a member's clock was said by that member.
        self._check_skew(ts, node)
        return self._proven(fields, node, nonce)

    def _check_skew(self, ts: str, node: str) -> None:
        # Whole numbers of any size: nothing to overflow.
        skew = int(ts) - int(self._clock.wall())
        if abs(skew) > SKEW_S:
            side = "ahead of" if skew > 0 else "behind"
            raise Unauthorized(
                f"skew: the clocks differ by {min(abs(skew), 10**9)} s, {SKEW_S} s are allowed; "
                f"that of {node[:64]} is {side} this node's",
                remedy="synchronise the clocks of both machines (NTP)",
            )

    def _proven(self, fields: list[tuple[str, str]], node: str, nonce: str) -> Signed:
        """What is left to check once the sender is known to hold the secret."""
        addressee = _optional(fields, TO)
        if addressee is not None and addressee != self._node_id:
            raise Unauthorized("addressee: the request was meant for another node, or an earlier run of this one")
        forwarded = _optional(fields, FORWARDED)
        if forwarded is not None and forwarded != node:
            raise Unauthorized(f"origin: {FORWARDED} is not the member that signed")
        # Last, so that only those who hold the secret can fill the memory of nonces.
        self._nonces.take(nonce)
        return Signed(node=node, forwarded=forwarded)


class _Nonces:
    """The nonces of the last four minutes.

    When full it refuses. It never forgets early: that would let a recorded request pass a second time.
    """

    def __init__(self, limit: int, clock: Clock) -> None:
        self._limit = limit
        self._clock = clock
        self._seen: set[str] = set()
        self._by_age: deque[tuple[float, str]] = deque()

    def take(self, nonce: str) -> None:
        now = self._clock.monotonic()
        self._forget(now)
        if nonce in self._seen:
            raise Unauthorized("nonce replayed: this request was seen before")
        if len(self._seen) >= self._limit:
            raise Unauthorized("nonce cache full: too many signed requests in four minutes")
        self._seen.add(nonce)
        self._by_age.append((now, nonce))

    def _forget(self, now: float) -> None:
        while self._by_age and now - self._by_age[0][0] > NONCE_LIFE_S:
            self._seen.remove(self._by_age.popleft()[1])


def _check_form(ts: str, nonce: str) -> None:
    if not _TS.fullmatch(ts):
        raise Unauthorized(f"malformed: {TS} is not a time in Unix seconds")
    if not _NONCE.fullmatch(nonce):
        raise Unauthorized(f"malformed: {NONCE} is not 16 bytes in base64url")


def _fields(headers: Headers) -> list[tuple[str, str]]:
    return [(name.lower(), value.strip()) for name, value in headers if name.lower().startswith(_PREFIX)]


def _optional(fields: list[tuple[str, str]], header: str) -> str | None:
    values = [value for name, value in fields if name == header.lower()]
    if len(values) > 1:
        raise Unauthorized(f"malformed: {header} is there more than once")
    return values[0] if values else None


def _required(fields: list[tuple[str, str]], header: str) -> str:
    value = _optional(fields, header)
    if not value:
        raise Unauthorized(f"missing: {header}")
    return value


def _digest_of(body: bytes | Digest) -> Digest:
    return digest(body) if isinstance(body, bytes) else body


def _lines(method: str, target: str, claim: tuple[str, str, str], body: Digest, headers: Headers) -> bytes:
    others = sorted(f"{name}:{value}" for name, value in _fields(headers) if name not in _OWN_LINES)
    lines = ["v2", method.upper(), target, *claim, body, *others]
    if any("\n" in line or "\r" in line for line in lines):
        # A line break inside a value could make one set of lines look like another.
        raise Unauthorized("malformed: a line break in the request line or in a header")
    return _encode("\n".join(lines))


def _auth(key: bytes, lines: bytes) -> str:
    code = hmac.digest(key, lines, "sha256")
    return "v2=" + base64.urlsafe_b64encode(code).rstrip(b"=").decode()


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")

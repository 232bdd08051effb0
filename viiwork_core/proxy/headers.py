"""Which headers go where. Client credentials stop here; so does what names the client or the hop."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

Raw = tuple[bytes, bytes]

_HOP = frozenset(
    (b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade")
)
_CREDENTIALS = frozenset((b"authorization", b"proxy-authorization", b"cookie", b"x-api-key", b"api-key"))
_REPLACED = frozenset((b"host", b"content-length", b"accept-encoding", b"expect", b"x-request-id"))
"""Set by whoever sends. accept-encoding: a compressed answer could not be read for its usage."""

_SESSION = frozenset((b"x-session-affinity", b"x-session-id"))
"""The session travels as its keyed hash only."""

_CLIENT = frozenset((b"origin", b"referer", b"forwarded", b"via", b"x-real-ip"))
"""Who the client is, and by way of which proxies it came."""

_NOT_SENT = _HOP | _CREDENTIALS | _REPLACED | _SESSION | _CLIENT
_NOT_SENT_BEGINNINGS = (b"x-viiwork-", b"x-forwarded-", b"access-control-")
_NOT_RETURNED = _HOP | {b"set-cookie", b"date", b"server"}


def outgoing(headers: Sequence[Raw], *, without: str | None = None) -> list[tuple[str, str]]:
    """A client's headers as they go on to an engine or a peer; `without`: one more that is not the client's to set."""
    dropped = _for_this_hop(headers)
    if without is not None:
        dropped |= {without.lower().encode()}
    kept = []
    for name, value in headers:
        lower = name.lower()
        if lower in _NOT_SENT or lower in dropped or lower.startswith(_NOT_SENT_BEGINNINGS):
            continue
        kept.append((lower.decode("latin-1"), _text(value)))
    return kept


def _for_this_hop(headers: Iterable[Raw]) -> frozenset[bytes]:
    """What Connection names besides itself: it is meant for the next hop only."""
    named = [value for name, value in headers if name.lower() == b"connection"]
    return frozenset(part.strip().lower() for value in named for part in value.split(b","))


def _text(value: bytes) -> str:
    """A header as text that becomes the same bytes again: the client library writes UTF-8."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


def returning(headers: Sequence[Raw], *, from_peer: bool, extra: Mapping[str, str]) -> list[Raw]:
    """An engine's or a peer's answer headers as they go back to the client, with our own added.

    An engine's X-Viiwork-* would be lies; a peer's say which backend answered and stay. `extra` wins over both.
    """
    own = {name.lower().encode("latin-1"): value.encode("latin-1") for name, value in extra.items()}
    dropped = _for_this_hop(headers)
    kept = []
    for name, value in headers:
        lower = name.lower()
        if lower in _NOT_RETURNED or lower in own or lower in dropped or lower.startswith(b"access-control-"):
            continue
        if lower.startswith((b"x-viiwork-", b"x-gpu-backend")) and not from_peer:
            continue
        kept.append((lower, _vary_without_origin(value) if lower == b"vary" else value))
    return [*kept, *own.items()]


def _vary_without_origin(value: bytes) -> bytes:
    return b", ".join(part for part in (p.strip() for p in value.split(b",")) if part.lower() != b"origin")


def first(headers: Iterable[Raw], name: bytes) -> str | None:
    """The first value of a header, stripped; None when it is absent or blank."""
    length = len(name)
    for key, value in headers:
        # Few names are of the same length, and each request is looked through seven times.
        if len(key) == length and key.lower() == name:
            return value.decode("latin-1").strip() or None
    return None

"""Logins: what a browser holds in a cookie for the API key that it has shown, and how often keys may be guessed.

All in memory: a restart of the node ends every login. A cookie holds 32 random bytes, whose SHA-256 is kept.
"""

from __future__ import annotations

import hashlib
import ipaddress
import secrets
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from viiwork_core.clock import Clock
from viiwork_core.security.keys import ApiKey, KeyRing

LOGIN_S: Final = 7 * 24 * 3600
LOGINS_MOST: Final = 1024
FAILURES_MOST: Final = 10
"""Wrong keys of one address within FAILURES_S."""

FAILURES_S: Final = 60.0
ADDRESSES_MOST: Final = 4096


@dataclass(frozen=True, slots=True)
class _Login:
    digest: bytes
    """Of the key that was shown. Whether it still counts is looked up each time."""

    until: float


class Logins:
    """The browsers that are let in. One thread. When there are LOGINS_MOST the oldest ends."""

    def __init__(self, keys: KeyRing, clock: Clock) -> None:
        self._keys = keys
        self._clock = clock
        self._by_hash: OrderedDict[bytes, _Login] = OrderedDict()

    def begin(self, key: ApiKey) -> str:
        """What the cookie is to hold."""
        value = secrets.token_urlsafe(32)
        self._by_hash[_hash(value)] = _Login(key.digest, self._clock.monotonic() + LOGIN_S)
        if len(self._by_hash) > LOGINS_MOST:
            self._by_hash.popitem(last=False)
        return value

    def find(self, value: str) -> ApiKey | None:
        """Whose login that is, if it lasts and the key still counts."""
        login = self._by_hash.get(_hash(value))
        if login is None:
            return None
        key = self._keys.by_digest(login.digest)
        if key is None or self._clock.monotonic() >= login.until:
            self.end(value)
            return None
        return key

    def end(self, value: str) -> None:
        """Of a login that there is, or is not."""
        self._by_hash.pop(_hash(value), None)

    def __len__(self) -> int:
        return len(self._by_hash)

    def __repr__(self) -> str:
        return f"Logins({len(self)})"


class Guesses:
    """Counts the wrong keys of each address: FAILURES_MOST a minute. One thread.

    Addresses of one IPv6 /64 are one, since one machine has all of them. When ADDRESSES_MOST are known the one that
    failed longest ago is forgotten.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._failed: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def wait_s(self, address: str) -> int:
        """Seconds until that address may try again; 0: now."""
        began, count = self._failed.get(_network(address), (0.0, 0))
        left = began + FAILURES_S - self._clock.monotonic()
        return max(1, round(left)) if count >= FAILURES_MOST and left > 0 else 0

    def failed(self, address: str) -> bool:
        """Count a wrong key. Whether it is the first of a minute."""
        now, network = self._clock.monotonic(), _network(address)
        began, count = self._failed.pop(network, (now, 0))
        if now - began >= FAILURES_S:
            began, count = now, 0
        self._failed[network] = (began, count + 1)
        if len(self._failed) > ADDRESSES_MOST:
            self._failed.popitem(last=False)
        return count == 0


def _hash(value: str) -> bytes:
    return hashlib.sha256(value.encode("utf-8", "surrogatepass")).digest()


def _network(address: str) -> str:
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return address
    if ip.version == 4:
        return str(ip)
    return str(ip.ipv4_mapped or ipaddress.ip_network((ip, 64), strict=False))

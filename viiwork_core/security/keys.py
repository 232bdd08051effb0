"""API keys: what a client shows, what a node keeps of it, and the ring that tells whose key was shown.

A token is "vwk_" and the base64url of 36 bytes: 32 random ones and a checksum over them. The checksum proves nothing;
it tells a typing mistake from a key that nobody made, and makes sure that a token has 256 random bits, so that one
plain SHA-256 of it is enough to keep: there is no dictionary of such tokens to try.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

SCOPE_KEY: Final = "viiwork.key"
"""Where an ASGI scope holds the ApiKey of its request; absent without keys."""

PREFIX: Final = "vwk_"
RANDOM_BYTES: Final = 32
CHECK_BYTES: Final = 4
TOKEN_LENGTH: Final = len(PREFIX) + (RANDOM_BYTES + CHECK_BYTES) * 4 // 3

MAX_KEYS: Final = 256
"""Keys of one list: of a configuration, or of the table that all nodes have. What each uses is counted and told to all
nodes, and there is an end to that as well."""

MAX_WEIGHT: Final = 1000
MAX_DAILY_TOKENS: Final = 10**15
MAX_MODELS: Final = 64

NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}")
NAME_REMEDY: Final = "use 1 to 64 of A-Z a-z 0-9 . _ -, the first no . or -"

_HASH: Final = re.compile(r"sha256:[0-9a-f]{64}")
_TOKEN: Final = re.compile(re.escape(PREFIX) + f"[A-Za-z0-9_-]{{{TOKEN_LENGTH - len(PREFIX)}}}")


@dataclass(frozen=True, slots=True)
class ApiKey:
    """One key, without what a client shows for it."""

    name: str
    """1 to 64 of A-Z a-z 0-9 . _ -; what logs, metrics and `viiwork key ls` call it."""

    digest: bytes
    """SHA-256 of the token, 32 bytes."""

    weight: int = 1
    """Its share where several keys wait for one model, 1 to MAX_WEIGHT: 2 gets twice the turns of 1."""

    daily_tokens: int = 0
    """Prompt and completion tokens a day (UTC), in the whole mesh; 0: no limit."""

    models: tuple[str, ...] = ()
    """Names that it may ask for, as a client writes them: models or aliases; empty: all."""

    def allows(self, model: str) -> bool:
        """Whether it may ask for what a client calls `model`."""
        return not self.models or model in self.models


class KeyRing:
    """The keys that count now. Safe to read from any thread; false when the API is open."""

    def __init__(self, keys: Iterable[ApiKey] = (), *, closed: bool = False) -> None:
        self._keys: dict[bytes, ApiKey] = {}
        self._shut = False
        self.replace(keys, closed=closed)

    def replace(self, keys: Iterable[ApiKey], *, closed: bool = False) -> None:
        """From now on these count and no others. `closed`: a key is asked for even where none can be shown."""
        self._keys = {key.digest: key for key in keys}
        self._shut = closed or bool(self._keys)

    def find(self, token: str) -> ApiKey | None:
        """Whose key a client has shown; None: nobody's.

        Looked up by the hash of the token: how long that takes says something about hashes, from which no token can be
        made, and nothing about tokens.
        """
        found = self._keys.get(digest_of(token))
        return found if found is not None and fault(token) is None else None

    def by_digest(self, digest: bytes) -> ApiKey | None:
        """The key whose token has this digest; None: there is none, or none any more."""
        return self._keys.get(digest)

    def __bool__(self) -> bool:
        """Whether a client must show a key."""
        return self._shut

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[ApiKey]:
        return iter(self._keys.values())

    def __repr__(self) -> str:
        return f"KeyRing({len(self)} keys)"


def new_token() -> str:
    """A token that nobody has."""
    random = secrets.token_bytes(RANDOM_BYTES)
    return PREFIX + base64.urlsafe_b64encode(random + _check(random)).decode()


def digest_of(token: str) -> bytes:
    """SHA-256 of a token, 32 bytes."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


def fault(token: str) -> str | None:
    """What is wrong with a token's form, for who typed it and never for who asks over HTTP; None: nothing."""
    if not token.startswith(PREFIX):
        return f"it does not begin with {PREFIX}"
    if not _TOKEN.fullmatch(token):
        return f"it is not {PREFIX} and {TOKEN_LENGTH - len(PREFIX)} characters: was it cut off?"
    read = base64.urlsafe_b64decode(token[len(PREFIX) :])
    fits = hmac.compare_digest(_check(read[:RANDOM_BYTES]), read[RANDOM_BYTES:])
    return None if fits else "a character of it is wrong: its checksum does not fit"


def hash_text(digest: bytes) -> str:
    """A digest as configs and files have it: "sha256:" and 64 hex characters."""
    return f"sha256:{digest.hex()}"


def read_hash(text: str) -> bytes:
    """The digest in `hash_text`'s form. Raises ValueError."""
    if not _HASH.fullmatch(text):
        raise ValueError('a hash is "sha256:" and 64 hex characters (0-9 a-f); `viiwork key entry` prints one')
    return binascii.unhexlify(text.partition(":")[2])


def _check(random: bytes) -> bytes:
    return hashlib.sha256(b"viiwork key " + random).digest()[:CHECK_BYTES]

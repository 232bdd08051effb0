"""API keys as a table that all nodes of a mesh have: what is written of a key, and its text. Values only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from viiwork_core.mesh.table import Author, Milliseconds, Table, Version
from viiwork_core.mesh.table_text import TableText
from viiwork_core.security.keys import MAX_DAILY_TOKENS, MAX_MODELS, MAX_WEIGHT, NAME, ApiKey, hash_text, read_hash

MAX_NAMES: Final = 1024
"""Names of keys, those of revoked ones too, which may be used again."""

KeyHash = Annotated[str, Meta(pattern=r"^sha256:[0-9a-f]{64}\Z")]
Weight = Annotated[int, Meta(ge=1, le=MAX_WEIGHT)]
DailyTokens = Annotated[int, Meta(ge=0, le=MAX_DAILY_TOKENS)]
ModelNames = Annotated[
    tuple[Annotated[str, Meta(min_length=1, max_length=256, pattern=r"^[^\s\x00-\x1f\x7f]+\Z")], ...],
    Meta(max_length=MAX_MODELS),
]


class KeyWrite(msgspec.Struct, frozen=True, omit_defaults=True):
    """One write to a key's name. Raises ValueError for one that makes no sense, when made and when read."""

    ver: Version
    by: Author
    """The node that took the write."""

    ts: Milliseconds = 0
    """Unix milliseconds at the author, for people; never compared."""

    hash: KeyHash | None = None
    """None: the key is revoked."""

    weight: Weight = 1
    daily_tokens: DailyTokens = 0
    models: ModelNames = ()
    opens: bool = False
    """Of a revoked one: the operator wants the API open if no key is left."""

    def __post_init__(self) -> None:
        if self.hash is None and (self.weight, self.daily_tokens, self.models) != (1, 0, ()):
            raise ValueError("a revoked key has no limits")
        if self.hash is not None and self.opens:
            raise ValueError("only a revoked key can open the API")

    @property
    def deleted(self) -> bool:
        """Whether the key is revoked."""
        return self.hash is None

    @property
    def rank(self) -> tuple[object, ...]:
        """What merging compares. Of two writes that should not have met, the one that revokes counts."""
        shown = (self.hash or "", self.weight, self.daily_tokens, self.models, not self.opens, self.ts)
        return (self.ver, self.by, self.deleted, *shown)

    def key(self, name: str) -> ApiKey:
        """What the ring has of it, unless it is revoked."""
        assert self.hash is not None, "revoked"
        return ApiKey(name, read_hash(self.hash), self.weight, self.daily_tokens, self.models)


def limits(key: ApiKey) -> dict[str, Any]:
    """What a write says of a key."""
    found = {"weight": key.weight, "daily_tokens": key.daily_tokens, "models": key.models}
    return {"hash": hash_text(key.digest), **found}


@dataclass(frozen=True)
class KeyTable(Table[KeyWrite]):
    """All keys at one moment. A revoked one is remembered for ever: no node that was away may bring it back."""

    HISTORY = 0
    MAX_NAMES = MAX_NAMES
    TOMBSTONE_HOURS = None


KEYS: Final = TableText(table=KeyTable, write=KeyWrite, field="keys", one="a key", name=NAME)

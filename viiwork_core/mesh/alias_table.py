"""Aliases as a table that all nodes of a mesh have: what is written of an alias, and its text. Values only.

As JSON an alias has "target" and "fallbacks" besides what every table has.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from viiwork_core.mesh.table import Author, Milliseconds, Table, Version
from viiwork_core.mesh.table_text import TableText

MAX_LIVE: Final = 256
"""Names that stand for something, as far as a write of this node's may bring them."""

MAX_NAMES: Final = 1024
HISTORY: Final = 10
MAX_FALLBACKS: Final = 8

MAX_BYTES: Final = 2048
"""All model names of one write together."""

TOMBSTONE_HOURS: Final = 30 * 24

NAME: Final = re.compile(r"(?!\.+\Z)[A-Za-z0-9._-]{1,64}")

ModelName = Annotated[str, Meta(min_length=1, max_length=256, pattern=r"^[^\s\x00-\x1f\x7f]+\Z")]
_Target = Annotated[str, Meta(max_length=256, pattern=r"^[^\s\x00-\x1f\x7f]*\Z")]


class AliasWrite(msgspec.Struct, frozen=True, omit_defaults=True):
    """One write to a name. Raises ValueError for one that makes no sense, when made and when read."""

    ver: Version
    by: Author
    """The node that took the write."""

    ts: Milliseconds = 0
    """Unix milliseconds at the author, for people; never compared."""

    target: _Target = ""
    """The model; "" when deleted."""

    fallbacks: Annotated[tuple[ModelName, ...], Meta(max_length=MAX_FALLBACKS)] = ()
    """What is meant instead, in this order, while the target is not served."""

    deleted: bool = False

    def __post_init__(self) -> None:
        if self.deleted and self.models:
            raise ValueError("a deleted alias has no target")
        if not self.deleted and not self.target:
            raise ValueError("an alias needs a target")
        if len(set(self.models)) != len(self.models):
            raise ValueError("a model is there twice")
        if sum(len(model.encode()) for model in self.models) > MAX_BYTES:
            raise ValueError(f"the model names have over {MAX_BYTES} bytes together")

    @property
    def models(self) -> tuple[str, ...]:
        """Target and fallbacks."""
        return (self.target, *self.fallbacks) if self.target else self.fallbacks

    @property
    def rank(self) -> tuple[object, ...]:
        """What merging compares."""
        return (self.ver, self.by, self.deleted, self.target, self.fallbacks, self.ts)


@dataclass(frozen=True)
class AliasTable(Table[AliasWrite]):
    """All aliases at one moment."""

    HISTORY = HISTORY
    MAX_NAMES = MAX_NAMES
    TOMBSTONE_HOURS = TOMBSTONE_HOURS


ALIASES: Final = TableText(table=AliasTable, write=AliasWrite, field="aliases", one="an alias", name=NAME)

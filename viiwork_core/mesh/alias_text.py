"""Alias tables as JSON: the file of a node, and the pages that members fetch from each other.

    {"v": 1, "aliases": {NAME: {"ver", "by", "ts"?, "target"?, "fallbacks"?, "deleted"?, "history"?, "age_h"?}}}

A page has "digest" besides, that of the whole table, and "next", the name to go on after, unless it is the last one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from viiwork_core.errors import BackendFailed
from viiwork_core.mesh.aliases import HISTORY, NAME, TOMBSTONE_HOURS, AliasName, AliasTable, Entry, Write, entry

VERSION: Final = 1
PAGE_BYTES: Final = 256 * 1024
"""Size from which a page takes no further name."""

_Digest = Annotated[str, Meta(pattern=r"^[0-9a-f]{32}\Z")]


class EntryText(Write, frozen=True, omit_defaults=True):
    """One name: its greatest write, and the others."""

    history: Annotated[tuple[Write, ...], Meta(max_length=HISTORY)] = ()
    age_h: Annotated[int, Meta(ge=0, le=TOMBSTONE_HOURS)] = 0
    """Of a deleted name: hours since then."""

    @property
    def writes(self) -> Entry:
        """As a table has them."""
        return entry(_plain(self), *self.history)


class _Table(msgspec.Struct):
    v: int
    aliases: dict[AliasName, EntryText]


class Page(msgspec.Struct, omit_defaults=True):
    """Part of a member's table. `read_page` checks the names one by one: a bad one must not hold up the others."""

    v: int
    digest: _Digest
    aliases: dict[str, msgspec.Raw]
    next: AliasName | None = None


class _Version(msgspec.Struct):
    v: int


def text(writes: Entry, age: int = 0) -> EntryText:
    """A name's text."""
    head = writes[0]
    return EntryText(
        head.ver, head.by, head.ts, head.target, head.fallbacks, head.deleted, history=writes[1:], age_h=age
    )


def _plain(found: EntryText) -> Write:
    return Write(found.ver, found.by, found.ts, found.target, found.fallbacks, found.deleted)


def encode_table(table: AliasTable) -> bytes:
    """A whole table."""
    return msgspec.json.encode({"v": VERSION, "aliases": _texts(table, sorted(table.entries))})


def _texts(table: AliasTable, names: Iterable[str]) -> dict[str, EntryText]:
    return {name: text(table.entries[name], table.ages.get(name, 0)) for name in names}


def decode_table(raw: bytes) -> AliasTable:
    """Read a whole table, of which every word must be right. Raises ValueError with the reason."""
    try:
        version = msgspec.json.decode(raw, type=_Version).v
        if version == VERSION:
            return _table(msgspec.json.decode(raw, type=_Table).aliases)
    # RecursionError: what is nested too deeply for the decoder.
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(str(error)) from error
    raise ValueError(f"it has version {version}, and this release reads version {VERSION}")


def _table(found: dict[str, EntryText]) -> AliasTable:
    entries = {name: one.writes for name, one in found.items()}
    ages = {name: one.age_h for name, one in found.items() if one.age_h and entries[name][0].deleted}
    return AliasTable(entries, ages)


def encode_page(table: AliasTable, after: str = "") -> bytes:
    """The names that follow `after`, as many as a page takes."""
    aliases: dict[str, msgspec.Raw] = {}
    size, page = 0, {"v": VERSION, "digest": table.digest, "aliases": aliases}
    for name in sorted(name for name in table.entries if name > after):
        if size >= PAGE_BYTES:
            page["next"] = max(aliases)
            break
        (raw,) = _texts(table, (name,)).values()
        aliases[name] = msgspec.Raw(msgspec.json.encode(raw))
        size += len(aliases[name])
    return msgspec.json.encode(page)


def read_page(raw: bytes) -> tuple[Page, AliasTable, list[str]]:
    """A member's page, what it says, and the names of which it says something that cannot be.

    Raises BackendFailed when it is no page at all.
    """
    try:
        page = msgspec.json.decode(raw, type=Page)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BackendFailed(f"its page of aliases is malformed: {error}") from error
    if page.v != VERSION:
        raise BackendFailed(f"its aliases have version {page.v}, and this release reads version {VERSION}")
    read = {name: _read(name, one) for name, one in page.aliases.items()}
    good = {name: one for name, one in read.items() if isinstance(one, EntryText)}
    return page, _table(good), [f"{name[:64]!r}: {reason}" for name, reason in read.items() if name not in good]


def _read(name: str, raw: msgspec.Raw) -> EntryText | str:
    """One name's text, or why it is refused."""
    if not NAME.fullmatch(name):
        return "is no name of an alias"
    try:
        return msgspec.json.decode(raw, type=EntryText)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return str(error)


def plain(write: Write) -> dict[str, Any]:
    """A write alone, without history."""
    found: dict[str, Any] = msgspec.to_builtins(_plain(write) if isinstance(write, EntryText) else write)
    return found

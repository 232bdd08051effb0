"""Tables as JSON: the file of a node, and the pages that members fetch from each other.

    {"v": 1, FIELD: {NAME: {"ver", "by", "ts"?, "deleted"?, what the table is of..., "history"?, "age_h"?}}}

A page has "digest" besides, that of the whole table, and "next", the name to go on after, unless it is the last one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any, Final, Generic

import msgspec
from msgspec import Meta

from viiwork_core.errors import BackendFailed
from viiwork_core.mesh.table import MAX_VERSION, Kept, Table, W

VERSION: Final = 1
PAGE_BYTES: Final = 256 * 1024
"""Size from which a page takes no further name."""

_UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""RecursionError: what is nested too deeply for the decoder."""


class _Head(msgspec.Struct):
    v: int


class Page(msgspec.Struct):
    """What a page says of the whole table."""

    v: int
    digest: Annotated[str, Meta(pattern=r"^[0-9a-f]{32}\Z")]
    next: str | None = None


class _Past(msgspec.Struct):
    """What is stored beside a name's greatest write."""

    history: tuple[msgspec.Raw, ...] = ()
    age_h: Annotated[int, Meta(ge=0, le=MAX_VERSION)] = 0
    """Of a deleted name: hours since then."""


@dataclass(frozen=True)
class TableText(Generic[W]):
    """How one kind of table is written and read."""

    table: type[Table[W]]
    write: type[W]
    field: str
    """The JSON field that holds the names; also what people call all of them."""

    one: str
    """What people call one of them."""

    name: re.Pattern[str]
    """What a name looks like."""

    def encode(self, table: Table[W]) -> bytes:
        """A whole table."""
        names = {name: self._entry(table, name) for name in sorted(table.entries)}
        return msgspec.json.encode({"v": VERSION, self.field: names})

    @staticmethod
    def _entry(table: Table[W], name: str) -> dict[str, Any]:
        head, *before = table.entries[name]
        found = plain(head)
        if before:
            found["history"] = before
        if age := table.ages.get(name, 0):
            found["age_h"] = age
        return found

    def decode(self, raw: bytes) -> Table[W]:
        """Read a whole table, of which every word must be right. Raises ValueError with the reason."""
        try:
            version = msgspec.json.decode(raw, type=_Head).v
            if version != VERSION:
                raise ValueError(f"it has version {version}, and this release reads version {VERSION}")
            names = self._names(raw)
        except _UNREADABLE as error:
            raise ValueError(str(error)) from error
        read = {name: self._read(name, one) for name, one in names.items()}
        if bad := next(((name, one) for name, one in read.items() if isinstance(one, str)), None):
            raise ValueError(f"{bad[0][:64]!r}: {bad[1]}")
        return self._table(read)

    def _names(self, raw: bytes) -> dict[str, msgspec.Raw]:
        found = msgspec.json.decode(raw, type=dict[str, msgspec.Raw]).get(self.field)
        if found is None:
            raise msgspec.ValidationError(f"Object missing required field `{self.field}`")
        return msgspec.json.decode(found, type=dict[str, msgspec.Raw])

    def _read(self, name: str, raw: msgspec.Raw) -> tuple[tuple[W, ...], int] | str:
        """One name's writes and its age, or why it is refused."""
        if not self.name.fullmatch(name):
            return f"is no name of {self.one}"
        try:
            head, past = msgspec.json.decode(raw, type=self.write), msgspec.json.decode(raw, type=_Past)
            if len(past.history) > self.table.HISTORY:
                return f"has a history of over {self.table.HISTORY}"
            if self.table.TOMBSTONE_HOURS is not None and past.age_h > self.table.TOMBSTONE_HOURS:
                return f"has an age of over {self.table.TOMBSTONE_HOURS} hours"
            before = [msgspec.json.decode(one, type=self.write) for one in past.history]
        except _UNREADABLE as error:
            return str(error)
        return self.table.entry(head, *before), past.age_h

    def _table(self, read: dict[str, tuple[tuple[W, ...], int] | str]) -> Table[W]:
        good = {name: one for name, one in read.items() if not isinstance(one, str)}
        ages = {name: age for name, (writes, age) in good.items() if age and writes[0].deleted}
        return self.table({name: writes for name, (writes, _) in good.items()}, ages)

    def encode_page(self, table: Table[W], after: str = "") -> bytes:
        """The names that follow `after`, as many as a page takes."""
        found: dict[str, msgspec.Raw] = {}
        size, page = 0, {"v": VERSION, "digest": table.digest, self.field: found}
        for name in sorted(name for name in table.entries if name > after):
            if size >= PAGE_BYTES:
                page["next"] = max(found)
                break
            found[name] = msgspec.Raw(msgspec.json.encode(self._entry(table, name)))
            size += len(found[name])
        return msgspec.json.encode(page)

    def read_page(self, raw: bytes) -> tuple[Page, Table[W], list[str]]:
        """A member's page, what it says, and the names of which it says something that cannot be: a bad one does not
        hold up the others.

        Raises BackendFailed when it is no page at all.
        """
        try:
            page, names = msgspec.json.decode(raw, type=Page), self._names(raw)
        except _UNREADABLE as error:
            raise BackendFailed(f"its page of {self.field} is malformed: {error}") from error
        if page.v != VERSION:
            raise BackendFailed(f"its {self.field} have version {page.v}, and this release reads version {VERSION}")
        if page.next is not None and not self.name.fullmatch(page.next):
            raise BackendFailed(f"its page of {self.field} is malformed: it goes on after no name")
        read = {name: self._read(name, one) for name, one in names.items()}
        refused = [f"{name[:64]!r}: {one}" for name, one in read.items() if isinstance(one, str)]
        return page, self._table(read), refused


def plain(write: Kept) -> dict[str, Any]:
    """A write alone, without history."""
    found: dict[str, Any] = msgspec.to_builtins(write)
    return found

"""A JSON body of which only a few fields are read, and only what must change is changed.

The top level is split into names and raw values, so that a value which nobody edits goes out byte for byte as it came.
"""

from __future__ import annotations

import codecs

import msgspec

from viiwork_core.errors import InvalidRequest

_object = msgspec.json.Decoder(dict[str, msgspec.Raw])
_list = msgspec.json.Decoder(list[msgspec.Raw])
_any = msgspec.json.Decoder()

# RecursionError: what is nested too deeply for the decoder.
_NOT_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

_PIECE = 1024 * 1024


def _is_utf8(raw: bytes) -> bool:
    """The decoder looks only into fields that are read. An engine reads all, and may call it a failure of its own."""
    if raw.isascii():
        return True
    # In pieces: as one text it could take four times the memory.
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        for start in range(0, len(raw), _PIECE):
            decoder.decode(raw[start : start + _PIECE], start + _PIECE >= len(raw))
    except UnicodeDecodeError:
        return False
    return True


def first_byte(raw: msgspec.Raw) -> bytes:
    """What kind of value it is. Without a copy of it, which may be large."""
    return bytes(memoryview(raw)[:1])


class Body:
    """A request's JSON object. `raw` is what came; `edited` what goes out after changes."""

    __slots__ = ("_changed", "_fields", "raw")

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        self._changed = False
        if not _is_utf8(raw):
            raise InvalidRequest("the body is not a JSON object: it is not UTF-8 text", remedy="encode it as UTF-8")
        try:
            self._fields = _object.decode(raw)
        except _NOT_JSON as error:
            raise InvalidRequest(f"the body is not a JSON object: {error}") from error

    def get(self, name: str) -> object:
        """A field's value, None when it is absent. Raises InvalidRequest when it is not JSON after all."""
        raw = self._fields.get(name)
        if raw is None:
            return None
        try:
            value: object = _any.decode(raw)
        except _NOT_JSON as error:
            raise InvalidRequest(f"{name}: not valid JSON: {error}") from error
        return value

    def items(self, name: str) -> list[msgspec.Raw] | None:
        """The entries of a list, unread; None when the field is absent or something else."""
        raw = self._fields.get(name)
        if raw is None or first_byte(raw) != b"[":
            return None
        return _list.decode(raw)

    def written(self, name: str) -> msgspec.Raw | None:
        """A field as it is written; None when it is absent."""
        return self._fields.get(name)

    def set(self, name: str, value: object) -> None:
        """Set a field in what goes out."""
        self._fields[name] = msgspec.Raw(msgspec.json.encode(value))
        self._changed = True

    def settle(self) -> None:
        """Count what was changed so far as what came."""
        self.raw, self._changed = self.edited(), False

    def drop(self, name: str) -> None:
        """Leave a field out of what goes out."""
        if self._fields.pop(name, None) is not None:
            self._changed = True

    def edited(self) -> bytes:
        """What goes out: the bytes that came, unless a field was changed."""
        return msgspec.json.encode(self._fields) if self._changed else self.raw

    def copy(self) -> Body:
        """A second body to edit, for another try."""
        twin = Body.__new__(Body)
        twin.raw, twin._fields, twin._changed = self.raw, dict(self._fields), self._changed
        return twin

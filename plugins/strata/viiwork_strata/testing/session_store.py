"""The double's session files: real ones of Strata's format version 1.

The two hashes are 64-bit BLAKE2b. Strata's own are rounds like xxHash64's that no library has; both find a flipped bit,
and neither can check the other's files.
"""

from __future__ import annotations

import errno
import os
import struct
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from viiwork_strata.session_file import COUNT, END, FRAME, GEOMETRY, HEADER, MAGIC, TRAILER, VERSION
from viiwork_strata.testing.conversation import LAYERS, ROW_BYTES, TOKEN_BYTES, Conversation, Point
from viiwork_strata.testing.refusal import Refusal

_GEOMETRY = GEOMETRY.pack(LAYERS, ROW_BYTES, TOKEN_BYTES, *([0] * 15), 0, LAYERS, 0)
_ARRAYS = 5
"""gdn (here: the state), ple, tails, dead, block_pos."""


def hash64(data: bytes) -> int:
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "little")


@dataclass(frozen=True, slots=True)
class Identity:
    """What a file must have in common with the engine that restores it."""

    model: int
    config: int


def pack(conversation: Conversation, identity: Identity) -> bytes:
    """The bytes of a session file."""
    payload = _GEOMETRY + _pack_point(conversation.point)
    checkpoints = [] if conversation.checkpoint is None else [conversation.checkpoint]
    payload += COUNT.pack(len(checkpoints)) + b"".join(_pack_point(point) for point in checkpoints)
    payload += b"".join(conversation.layers)
    head = HEADER.pack(MAGIC, VERSION, HEADER.size, identity.model, identity.config, len(payload), 0, 0, 0)[:-8]
    return head + COUNT.pack(hash64(head)) + payload + TRAILER.pack(hash64(payload), END)


def _pack_point(point: Point) -> bytes:
    n = len(point.tokens)
    ids = COUNT.pack(n) + struct.pack(f"<{n}i", *point.tokens) + COUNT.pack(0)
    arrays = (point.state, *([b""] * (_ARRAYS - 1)))
    return ids + b"".join(COUNT.pack(len(array)) + array for array in arrays) + COUNT.pack(n)


def unpack(data: bytes, identity: Identity, max_context: int) -> Conversation:
    """The conversation in a session file. Raises Refusal (400, kind invalid)."""
    payload = _checked_payload(data, identity)
    if payload[: GEOMETRY.size] != _GEOMETRY:
        raise _invalid("the session file has another geometry")
    try:
        return _unpack_payload(payload, max_context)
    except struct.error as error:
        raise _invalid("the session file is corrupt") from error


def _checked_payload(data: bytes, identity: Identity) -> bytes:
    if len(data) < FRAME or data[:8] != MAGIC or data[-8:] != END:
        raise _invalid("not a session file")
    _, version, size, model, config, length, zero, also_zero, head_hash = HEADER.unpack(data[: HEADER.size])
    if head_hash != hash64(data[: HEADER.size - 8]) or (zero, also_zero) != (0, 0):
        raise _invalid("the session file's header is corrupt")
    if (version, size) != (VERSION, HEADER.size):
        raise _invalid("the session file is of another version")
    if model != identity.model:
        raise _invalid("the session file was saved by another model")
    if config != identity.config:
        raise _invalid("the session file was saved under another configuration")
    payload = data[HEADER.size : -TRAILER.size]
    if length != len(payload) or TRAILER.unpack(data[-TRAILER.size :])[0] != hash64(payload):
        raise _invalid("the session file is corrupt")
    return payload


def _unpack_payload(payload: bytes, max_context: int) -> Conversation:
    live, at = _unpack_point(payload, GEOMETRY.size)
    (checkpoints,) = COUNT.unpack_from(payload, at)
    checkpoint, at = _unpack_point(payload, at + COUNT.size) if checkpoints else (None, at + COUNT.size)
    if len(live.tokens) > max_context:
        raise _invalid("the session is longer than the context")
    size = len(live.tokens) * ROW_BYTES
    if len(payload) != at + LAYERS * size:
        raise _invalid("the session file is corrupt")
    layers = tuple(bytearray(payload[at + number * size : at + (number + 1) * size]) for number in range(LAYERS))
    return Conversation(list(live.tokens), live.state, checkpoint, layers)


def _unpack_point(payload: bytes, at: int) -> tuple[Point, int]:
    (n,) = COUNT.unpack_from(payload, at)
    tokens = struct.unpack_from(f"<{n}i", payload, at + COUNT.size)
    (images,) = COUNT.unpack_from(payload, at + COUNT.size + 4 * n)
    at += 2 * COUNT.size + 4 * n + 16 * images
    arrays = []
    for _ in range(_ARRAYS):
        (length,) = COUNT.unpack_from(payload, at)
        arrays.append(payload[at + COUNT.size : at + COUNT.size + length])
        at += COUNT.size + length
    return Point(tokens, arrays[0]), at + COUNT.size


def save(path: Path, data: bytes) -> None:
    """Write under a hidden name, flush, rename, flush the folder. Raises Refusal (507 storage, 500 io)."""
    hidden = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with os.fdopen(os.open(hidden, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        hidden.replace(path)
        _flush_folder(path.parent)
    except OSError as error:
        hidden.unlink(missing_ok=True)
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        status, kind = (507, "storage") if full else (500, "io")
        raise Refusal(status, f"saving the session failed: {error.strerror}", kind=kind) from error


def _flush_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def load(path: Path) -> bytes:
    """The file's bytes. Raises Refusal: 400 for a symbolic link or a file with a second hard link, 500 io."""
    try:
        if path.is_symlink() or path.stat().st_nlink > 1:
            raise _invalid("the session file is a link or has more than one name")
        return path.read_bytes()
    except OSError as error:
        raise Refusal(500, f"reading the session failed: {error.strerror}", kind="io") from error


def _invalid(reason: str) -> Refusal:
    return Refusal(400, reason, kind="invalid")

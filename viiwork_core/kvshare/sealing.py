"""Sealing: a saved cache file on its way between two members, encrypted and proven frame by frame.

    stream := u32 size of header | header (JSON) | frame...
    frame  := u32 size and last-flag | AES-256-GCM ciphertext of at most 1 MiB, with its tag

Integers are big endian; the flag is the size's top bit. Each transfer has a key of its own, derived from the replica
key and the salt in its header. A frame's nonce is its number and whether it is the last, and the header's bytes are
associated data of every frame: a frame that was changed, moved, repeated, left out or taken from another transfer
does not open.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Generator, Iterable, Iterator
from pathlib import Path
from typing import Annotated, Final, Literal, TypeVar

import msgspec
from blake3 import blake3
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from viiwork_core.errors import CacheRefused

WHOLE: Final = 1
PARTS: Final = 2
"""Versions of the stream and of the header: a whole file; a delta, or the rest of a broken transfer."""

BLOCK = 1 << 20
"""Bytes of the file in one frame, at most."""

HEADER_LIMIT = 4096
"""Bytes of an encoded header, at most."""

_HASHING = 4
"""Threads that hash a file, where so many cores are free: a transfer and an import begin only once it is done."""

_HASHED = 4 << 20
"""Bytes that they hash at a time."""

_LABEL = b"viiwork replica transfer 1"
_PREFIX = 4
_TAG = 16
_LAST = 1 << 31

Name = Annotated[str, msgspec.Meta(pattern=r"^[^\x00-\x1f\x7f]{1,256}\Z")]
SessionHex = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{8,128}\Z")]
Fingerprint = Annotated[str, msgspec.Meta(pattern=r"^[\x21-\x7e]{1,512}\Z")]
Digest = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]
Salt = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{32}\Z")]
Count = Annotated[int, msgspec.Meta(ge=1, le=1 << 53)]


class ReplicaLabel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a saved session is, as its owner says."""

    model: Name
    group: Name
    """Name of the kv_share group that sender and receiver both belong to."""

    fingerprint: Fingerprint
    session: SessionHex
    """Keyed hash of the session."""

    turn: Count
    """Counter of the session's turns, one above every turn known where it ran. No clock takes part."""

    tokens: Count
    """Tokens that the file holds."""


class ReplicaHeader(ReplicaLabel, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A label and the file it belongs to."""

    length: Count
    """Bytes of the whole file."""

    blake3: Digest
    """BLAKE3 of the whole file."""

    base: Digest | None = None
    """BLAKE3 of the file that the blocks are a delta against; None: they are the file itself."""

    start: Annotated[int, msgspec.Meta(ge=0, le=1 << 53)] = 0
    """Byte of the file that the first block continues at; over 0 where a broken transfer goes on."""

    @property
    def kept(self) -> ReplicaHeader:
        """The header of the file, however it came."""
        return msgspec.structs.replace(self, base=None, start=0)


class _WireHeader(ReplicaHeader, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The header as it travels. The salt is drawn by `seal` alone, so that no key is used for two streams."""

    format: Literal[1, 2]
    salt: Salt


def measure(path: Path) -> tuple[int, str]:
    """Length and BLAKE3 (hex) of a file. Blocking: reads it whole, in pieces. Raises OSError."""
    hasher, length, block = blake3(max_threads=_HASHING), 0, bytearray(_HASHED)
    with path.open("rb", buffering=0) as file:
        while got := file.readinto(block):
            with memoryview(block)[:got] as part:
                hasher.update(part)
            length += got
    return length, hasher.hexdigest()


def encode_header(header: ReplicaHeader) -> bytes:
    """The header as JSON, checked like one from outside. Raises CacheRefused for one that no receiver would take."""
    encoded = msgspec.json.encode(header)
    _decode(encoded, type(header))
    return encoded


def decode_header(encoded: bytes) -> ReplicaHeader:
    """Read a header that `encode_header` wrote. Raises CacheRefused."""
    return _decode(encoded, ReplicaHeader)


def seal(key: bytes, header: ReplicaHeader, blocks: Iterable[bytes]) -> Generator[bytes, None, None]:
    """Yield the sealed stream of a file, piece by piece: the header, then one frame for each block.

    Blocks are 1 MiB at most (ValueError); empty ones are skipped. Blocking by the cost of encryption: about 0.2 ms a
    block. Raises CacheRefused for a header that no receiver would take.
    """
    salt = secrets.token_bytes(16)
    fields = {name: getattr(header, name) for name in ReplicaHeader.__struct_fields__}
    version: Literal[1, 2] = PARTS if header.base or header.start else WHOLE
    encoded = encode_header(_WireHeader(**fields, format=version, salt=salt.hex()))
    opening = len(encoded).to_bytes(_PREFIX, "big") + encoded
    cipher = _cipher(key, salt)
    yield opening
    for number, (block, last) in enumerate(_marked(blocks)):
        if len(block) > BLOCK:
            raise ValueError(f"a block of {len(block)} bytes is over the frame's {BLOCK}")
        sealed = cipher.encrypt(_nonce(number, last), block, opening)
        yield b"".join(((len(sealed) | (_LAST if last else 0)).to_bytes(_PREFIX, "big"), sealed))


class Opener:
    """Opens a sealed stream as it arrives. Holds one frame at most besides what it is fed.

    `header` is None until the first frame has proven it. After a refusal nothing more is opened.
    """

    def __init__(self, key: bytes, *previous: bytes) -> None:
        """`previous`: further keys that the stream may be sealed with, while the mesh changes its secret."""
        self.header: ReplicaHeader | None = None
        self._keys = (key, *previous)
        self._buffer = bytearray()
        """The head of a piece whose rest has not come yet: its first `_filled` bytes."""

        self._filled = 0
        self._step: Callable[[memoryview], bytes | None] = self._read_header_size
        self._wanted = _PREFIX
        self._claimed: ReplicaHeader | None = None
        self._ciphers: list[AESGCM] = []
        """Those that may fit: after the first frame the one that does."""

        self._opening = b""
        self._number = 0
        self._last = False
        self._complete = False

    def feed(self, data: bytes | bytearray | memoryview) -> list[bytes]:
        """Take more of the stream and return the blocks that are whole and proven. Blocking by decryption.

        Raises CacheRefused for anything that `seal` with one of the keys did not write.
        """
        blocks: list[bytes] = []
        at = 0
        with memoryview(data) as view:
            while at < len(view):
                wanted = self._wanted
                taken = min(wanted - self._filled, len(view) - at)
                whole = taken == wanted
                if not whole:
                    self._gather(view[at : at + taken])
                    if self._filled < wanted:
                        break
                # Until the step succeeds, whatever is fed next is refused as well.
                step, self._step, self._wanted, self._filled = self._step, self._refuse_rest, 0, 0
                block = step(view[at : at + taken] if whole else memoryview(self._buffer)[:wanted])
                at += taken
                if block:
                    blocks.append(block)
        return blocks

    def _gather(self, part: memoryview) -> None:
        if len(self._buffer) < self._wanted:
            self._buffer = bytearray(self._wanted)
        self._buffer[self._filled : self._filled + len(part)] = part
        self._filled += len(part)

    def finish(self) -> None:
        """Say that the stream has ended. Raises CacheRefused unless its last frame was opened."""
        if not self._complete:
            raise CacheRefused("the replica was cut short on its way")

    def _read_header_size(self, piece: memoryview) -> None:
        size = int.from_bytes(piece, "big")
        if not 0 < size <= HEADER_LIMIT:
            raise CacheRefused(f"the replica's header claims {size} bytes, {HEADER_LIMIT} are allowed")
        self._opening = bytes(piece)
        self._step, self._wanted = self._read_header, size

    def _read_header(self, piece: memoryview) -> None:
        encoded = bytes(piece)
        wire = _decode(encoded, _WireHeader)
        self._opening += encoded
        self._ciphers = [_cipher(key, bytes.fromhex(wire.salt)) for key in self._keys]
        self._claimed = ReplicaHeader(**{name: getattr(wire, name) for name in ReplicaHeader.__struct_fields__})
        self._step, self._wanted = self._read_frame_size, _PREFIX

    def _read_frame_size(self, piece: memoryview) -> None:
        prefix = int.from_bytes(piece, "big")
        size, self._last = prefix & ~_LAST, bool(prefix & _LAST)
        # An empty frame can only be the last: else a stream of them would never end and never fill anything.
        if not _TAG + (not self._last) <= size <= _TAG + BLOCK:
            raise CacheRefused(f"frame {self._number} of the replica claims {size} bytes")
        self._step, self._wanted = self._read_frame, size

    def _read_frame(self, piece: memoryview) -> bytes:
        block = self._decrypted(piece)
        self.header = self._claimed
        self._number += 1
        self._complete = self._last
        if not self._last:
            self._step, self._wanted = self._read_frame_size, _PREFIX
        return block

    def _decrypted(self, piece: memoryview) -> bytes:
        for cipher in self._ciphers:
            try:
                block = cipher.decrypt(_nonce(self._number, self._last), piece, self._opening)
            except InvalidTag:
                continue
            self._ciphers = [cipher]
            return block
        raise CacheRefused(
            f"frame {self._number} of the replica does not open: changed on its way, or sealed with another key",
            remedy="both members need the same mesh secret",
        )

    def _refuse_rest(self, _piece: memoryview) -> None:
        self._complete = False
        raise CacheRefused("bytes follow the end of the replica, or a frame that was refused")


_Header = TypeVar("_Header", bound=ReplicaHeader)


def _decode(encoded: bytes, kind: type[_Header]) -> _Header:
    if len(encoded) > HEADER_LIMIT:
        raise CacheRefused(f"the replica's header has {len(encoded)} bytes, {HEADER_LIMIT} are allowed")
    try:
        return msgspec.json.decode(encoded, type=kind)
    except msgspec.MsgspecError as error:
        # The text may quote what a stranger sent.
        raise CacheRefused(f"the replica's header is not valid: {str(error)[:200]}") from None


def _cipher(key: bytes, salt: bytes) -> AESGCM:
    return AESGCM(HKDF(algorithm=SHA256(), length=32, salt=salt, info=_LABEL).derive(key))


def _nonce(number: int, last: bool) -> bytes:
    return number.to_bytes(11, "big") + (b"\x01" if last else b"\x00")


def _marked(blocks: Iterable[bytes]) -> Iterator[tuple[bytes, bool]]:
    """Each block with whether it is the last. No block at all counts as one empty last block."""
    held: bytes | None = None
    for block in filter(None, blocks):
        if held is not None:
            yield held, False
        held = block
    yield held or b"", True

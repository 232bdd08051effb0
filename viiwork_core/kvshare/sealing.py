"""Sealing: a saved cache file on its way between two members, encrypted and proven frame by frame.

    stream := u32 size of header | header (JSON) | frame...
    frame  := u32 size and last-flag | AES-256-GCM ciphertext of at most 1 MiB, with its tag

Integers are big endian; the flag is the size's top bit. The last frame holds the BLAKE3 of the whole file, so that a
file is read once, while it goes out. Each transfer has a key of its own, derived from the replica key and the salt in
its header. A frame's nonce is its number and whether it is the last, and the header's bytes are associated data of
every frame: a frame that was changed, moved, repeated, left out or taken from another transfer does not open.

Each block is sealed into one buffer and opened into another, over and over: a buffer that stays in the processor's
cache costs less than new memory does.
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

FORMAT: Final = 3
"""Version of the stream and of its header. 1 and 2 had the file's hash in the header."""

BLOCK = 1 << 20
"""Bytes of the file in one frame, at most."""

PART = 512 << 10
"""Bytes of a whole file in one frame. With 64 to 256 KiB calls cost more, with 1 MiB fewer are still in the processor's
cache when they are hashed, sealed and sent (docs/decisions/0006)."""

HEADER_LIMIT = 4096
"""Bytes of an encoded header, at most."""

_HASHING = 4
"""Threads that hash a file, where so many cores are free: an import begins only once it is done."""

_HASHED = 4 << 20
"""Bytes that they hash at a time."""

_LABEL = b"viiwork replica transfer 1"
_DIGEST = 32
_PREFIX = 4
_TAG = 16
_LAST = 1 << 31

Name = Annotated[str, msgspec.Meta(pattern=r"^[^\x00-\x1f\x7f]{1,256}\Z")]
SessionHex = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{8,128}\Z")]
Fingerprint = Annotated[str, msgspec.Meta(pattern=r"^[\x21-\x7e]{1,512}\Z")]
Digest = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]
Origin = Annotated[str, msgspec.Meta(pattern=r"^[^\x00-\x1f\x7f]{0,256}\Z")]
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
    """A label and the whole file it belongs to, as it is stored."""

    length: Count
    """Bytes of the file."""

    blake3: Digest
    """BLAKE3 of the file."""

    origin: Origin = ""
    """The member that sent it; empty: not known."""


class TransferHeader(ReplicaLabel, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A label and how its file is sent. What the file's hash is, the end of the stream says."""

    length: Count
    """Bytes of the whole file."""

    base: Digest | None = None
    """BLAKE3 of the file that the blocks are a delta against; None: they are the file itself."""

    start: Annotated[int, msgspec.Meta(ge=0, le=1 << 53)] = 0
    """Byte of the file that the first block continues at; over 0 where a broken transfer goes on."""

    @property
    def whole(self) -> TransferHeader:
        """The same file, sent from its first byte to its last."""
        return msgspec.structs.replace(self, base=None, start=0)

    def stored(self, blake3: str, origin: str) -> ReplicaHeader:
        """The header of the file once it has arrived."""
        label = {name: getattr(self, name) for name in ReplicaLabel.__struct_fields__}
        return ReplicaHeader(**label, length=self.length, blake3=blake3, origin=origin)


class _WireHeader(TransferHeader, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The header as it travels. The salt is drawn by `seal` alone, so that no key is used for two streams."""

    format: Literal[3]
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


def encode_header(header: ReplicaHeader | TransferHeader) -> bytes:
    """The header as JSON, checked like one from outside. Raises CacheRefused for one that no receiver would take."""
    encoded = msgspec.json.encode(header)
    _decode(encoded, type(header))
    return encoded


def decode_header(encoded: bytes) -> ReplicaHeader:
    """Read a header that `encode_header` wrote. Raises CacheRefused."""
    return _decode(encoded, ReplicaHeader)


def seal(
    key: bytes, header: TransferHeader, blocks: Iterable[bytes | memoryview], digest: Callable[[], bytes]
) -> Generator[memoryview, None, None]:
    """Yield the sealed stream of a file, piece by piece: the header, one frame for each block, and the file's hash.

    A piece is valid until the next one is asked for. Blocks are 1 MiB at most (ValueError); empty ones are skipped.
    `digest` gives the BLAKE3 of the whole file and is called after the last block. Blocking by the cost of
    encryption. Raises CacheRefused for a header that no receiver would take.
    """
    salt = secrets.token_bytes(16)
    fields = {name: getattr(header, name) for name in TransferHeader.__struct_fields__}
    encoded = encode_header(_WireHeader(**fields, format=FORMAT, salt=salt.hex()))
    opening = len(encoded).to_bytes(_PREFIX, "big") + encoded
    yield memoryview(opening)
    frames = _Frames(_cipher(key, salt), opening)
    for block in blocks:
        if len(block) > BLOCK:
            raise ValueError(f"a block of {len(block)} bytes is over the frame's {BLOCK}")
        if block:
            yield frames.sealed(block)
    yield frames.sealed(digest(), last=True)


class _Frames:
    """Seals one block after the other, all in one buffer."""

    def __init__(self, cipher: AESGCM, opening: bytes) -> None:
        self._cipher, self._opening = cipher, opening
        self._buffer = memoryview(bytearray(_PREFIX + BLOCK + _TAG))
        self._number = 0

    def sealed(self, block: bytes | memoryview, *, last: bool = False) -> memoryview:
        size = len(block) + _TAG
        frame = self._buffer[: _PREFIX + size]
        frame[:_PREFIX] = (size | (_LAST if last else 0)).to_bytes(_PREFIX, "big")
        self._cipher.encrypt_into(_nonce(self._number, last), block, self._opening, frame[_PREFIX:])
        self._number += 1
        return frame


class Opener:
    """Opens a sealed stream as it arrives. Holds one frame and its block at most.

    Bytes are put where `get_buffer` says and then told of by `buffer_updated`, as asyncio's BufferedProtocol has it;
    or `feed` copies them there. `header` is None until the first frame has proven it, and `blake3`, which the sender
    says the whole file has, until the last one has. After a refusal nothing more is opened.
    """

    def __init__(self, key: bytes, *previous: bytes) -> None:
        """`previous`: further keys that the stream may be sealed with, while the mesh changes its secret."""
        self.header: TransferHeader | None = None
        self.blake3: str | None = None
        self._keys = (key, *previous)
        self._buffer = memoryview(bytearray(PART + _TAG))
        self._block = memoryview(bytearray(PART))
        self._filled = 0
        self._step: Callable[[memoryview], memoryview | None] = self._read_header_size
        self._wanted = _PREFIX
        self._claimed: TransferHeader | None = None
        self._ciphers: list[AESGCM] = []
        """Those that may fit: after the first frame the one that does."""

        self._opening = b""
        self._number = 0

    def get_buffer(self) -> memoryview:
        """Where the next bytes of the stream go. Never empty."""
        return self._buffer[self._filled : self._wanted]

    def buffer_updated(self, count: int) -> memoryview | None:
        """So many bytes have been put there. The block that they complete, proven and valid until the next call; None:
        they complete none. Blocking by decryption.

        Raises CacheRefused for anything that `seal` with one of the keys did not write.
        """
        self._filled += count
        if self._filled < self._wanted:
            return None
        piece, step = self._buffer[: self._wanted], self._step
        # Until the step succeeds, whatever comes next is refused as well.
        self._expect(self._refuse_rest, 1)
        return step(piece)

    def feed(self, data: bytes | bytearray | memoryview) -> Iterator[memoryview]:
        """Take more of the stream, and yield the blocks that it completes. Raises as `buffer_updated` does."""
        left = memoryview(data)
        while left:
            room = self.get_buffer()
            count = min(len(room), len(left))
            room[:count] = left[:count]
            left = left[count:]
            if block := self.buffer_updated(count):
                yield block

    def finish(self) -> str:
        """Say that the stream has ended. The hash of the whole file. Raises CacheRefused unless its last frame came."""
        if self.blake3 is None:
            raise CacheRefused("the replica was cut short on its way")
        return self.blake3

    def _expect(self, step: Callable[[memoryview], memoryview | None], size: int) -> None:
        self._step, self._wanted, self._filled = step, size, 0
        if size > len(self._buffer):
            self._buffer = memoryview(bytearray(size))

    def _read_header_size(self, piece: memoryview) -> None:
        size = int.from_bytes(piece, "big")
        if not 0 < size <= HEADER_LIMIT:
            raise CacheRefused(f"the replica's header claims {size} bytes, {HEADER_LIMIT} are allowed")
        self._opening = bytes(piece)
        self._expect(self._read_header, size)

    def _read_header(self, piece: memoryview) -> None:
        encoded = bytes(piece)
        wire = _decode(encoded, _WireHeader)
        self._opening += encoded
        self._ciphers = [_cipher(key, bytes.fromhex(wire.salt)) for key in self._keys]
        self._claimed = TransferHeader(**{name: getattr(wire, name) for name in TransferHeader.__struct_fields__})
        self._expect(self._read_frame_size, _PREFIX)

    def _read_frame_size(self, piece: memoryview) -> None:
        prefix = int.from_bytes(piece, "big")
        size, last = prefix & ~_LAST, bool(prefix & _LAST)
        # An empty frame is none: a stream of them would never end and never fill anything.
        if not _TAG < size <= _TAG + BLOCK or (last and size != _TAG + _DIGEST):
            raise CacheRefused(f"frame {self._number} of the replica claims {size} bytes")
        if last:
            self._expect(self._read_last, size)
        else:
            self._expect(self._read_frame, size)

    def _read_frame(self, piece: memoryview) -> memoryview:
        block = self._decrypted(piece, last=False)
        self._expect(self._read_frame_size, _PREFIX)
        return block

    def _read_last(self, piece: memoryview) -> None:
        self.blake3 = bytes(self._decrypted(piece, last=True)).hex()

    def _decrypted(self, piece: memoryview, *, last: bool) -> memoryview:
        """What is in the next frame; with the first one the header is proven."""
        size = len(piece) - _TAG
        if size > len(self._block):
            self._block = memoryview(bytearray(size))
        block = self._block[:size]
        for cipher in self._ciphers:
            try:
                cipher.decrypt_into(_nonce(self._number, last), piece, self._opening, block)
            except InvalidTag:
                continue
            self._ciphers, self.header = [cipher], self._claimed
            self._number += 1
            return block
        raise CacheRefused(
            f"frame {self._number} of the replica does not open: changed on its way, or sealed with another key",
            remedy="both members need the same mesh secret",
        )

    def _refuse_rest(self, _piece: memoryview) -> None:
        self.blake3 = None
        raise CacheRefused("bytes follow the end of the replica, or a frame that was refused")


_Header = TypeVar("_Header", bound=ReplicaLabel)


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

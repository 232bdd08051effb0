"""Join codes: one line that carries a member's address, and the mesh's secret if it has one, to a new machine.

    viiwork1-  base64url without padding of:
        version         1 byte: 1
        flags           1 byte: bit 0: a secret follows
        secret          32 bytes, or none
        length          1 byte: of the address
        address         HOST:PORT of the member's gossip, ASCII, IPv6 in brackets
        checksum        4 bytes: CRC32 (IEEE), big-endian, of all bytes before

Later versions keep the prefix with their number, the first byte and the checksum at the end, so that a code of another
version is told from a damaged one. A code with a secret is as secret as that: no error and no repr shows any of it.
"""

from __future__ import annotations

import base64
import binascii
import ipaddress
import re
import zlib
from dataclasses import dataclass, field
from typing import Final

from viiwork_core.errors import ConfigError
from viiwork_core.security.secret import SECRET_BYTES

VERSION: Final = 1
LONGEST: Final = 4096
"""Characters that are looked at. A code has 405 at most."""

_HAS_SECRET: Final = 1
_CHECKSUM_BYTES: Final = 4
_SHAPE = re.compile(r"viiwork(0|[1-9][0-9]{0,2})-(.*)", re.ASCII)
_ALPHABET = re.compile(r"[A-Za-z0-9_-]*", re.ASCII)
_PORT = re.compile(r"[1-9][0-9]{0,4}", re.ASCII)
_LABEL = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)", re.ASCII)
_LONGEST_NAME: Final = 243
"""Characters of a host name, so that it, a colon and a port are far from the 255 of an address."""

_INVISIBLE: Final = dict.fromkeys(map(ord, "\u00ad\u200b\u200c\u200d\u2060\ufeff"))
"""What chat programs and word processors put into long words, to break them."""

_COPY_AGAIN: Final = "copy the whole line that `viiwork join-code` prints"


class JoinCodeRefused(ConfigError):
    """A text is no join code that this version can use; the class says why."""

    code = "join_code"


class NotAJoinCode(JoinCodeRefused):
    """It does not begin as one does."""

    code = "join_code_none"


class JoinCodeTruncated(JoinCodeRefused):
    """Its end is missing."""

    code = "join_code_truncated"


class JoinCodeDamaged(JoinCodeRefused):
    """Its checksum does not fit."""

    code = "join_code_damaged"


class JoinCodeVersion(JoinCodeRefused):
    """It is whole, and of a version that is not known here."""

    code = "join_code_version"


@dataclass(frozen=True, slots=True)
class JoinCode:
    """What a code says."""

    address: str
    """HOST:PORT of a member's gossip, IPv6 in brackets. HOST may be a name."""

    secret: bytes | None = field(repr=False)
    """32 bytes; None: the mesh is open."""

    @property
    def host(self) -> str:
        """Without brackets."""
        return self.address.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    @property
    def secret_text(self) -> str | None:
        """The secret as `mesh.secret_env` holds it: standard base64."""
        return None if self.secret is None else base64.b64encode(self.secret).decode()


def encode(code: JoinCode) -> str:
    """One line, to be shown to whoever may join. Raises ConfigError for an address that nobody can dial."""
    if code.secret is not None and len(code.secret) != SECRET_BYTES:
        raise ValueError(f"a mesh secret has {SECRET_BYTES} bytes")
    address = checked_address(code.address).encode()
    flags = _HAS_SECRET if code.secret is not None else 0
    content = bytes((VERSION, flags)) + (code.secret or b"") + bytes((len(address),)) + address
    return f"viiwork{VERSION}-{_text(content + _checksum(content))}"


def decode(text: str) -> JoinCode:
    """Read a code; white space and line breaks in it, as copying makes them, mean nothing.

    Raises NotAJoinCode, JoinCodeVersion, JoinCodeTruncated or JoinCodeDamaged. No message repeats any of the text.
    """
    shape = _SHAPE.fullmatch("".join(text.translate(_INVISIBLE).split())) if len(text) <= LONGEST else None
    if shape is None:
        raise NotAJoinCode("that is not a join code: one begins with viiwork1-", remedy=_COPY_AGAIN)
    version, written = int(shape[1]), shape[2]
    raw = _bytes(written)
    if raw is None or not _is_whole(raw) or raw[0] != version:
        raise _unreadable(version, written)
    if version != VERSION or raw[1] & ~_HAS_SECRET:
        raise JoinCodeVersion(
            f"the join code is of version {version}, and this viiwork reads version {VERSION}"
            if version != VERSION
            else "the join code says more than this version of viiwork reads",
            remedy="install the version of viiwork that the other machines run",
        )
    return _read(raw)


def checked_address(address: str) -> str:
    """HOST:PORT in one form: an IPv4 address, an IPv6 address in brackets, or a name. Raises ConfigError."""
    host, colon, port = address.rpartition(":")
    if not colon or not _PORT.fullmatch(port) or int(port) > 65535:
        raise _bad_address("it has no port of 1 to 65535")
    bracketed = host.startswith("[") and host.endswith("]")
    try:
        ip = ipaddress.ip_address(host[1:-1] if bracketed else host)
    except ValueError:
        return f"{_checked_name(host)}:{port}"
    if bracketed != (ip.version == 6):
        raise _bad_address("an IPv6 address, and no other, stands in brackets")
    if ip.is_unspecified or ip.is_multicast or "%" in host:
        raise _bad_address("other machines cannot dial it")
    return f"[{ip}]:{port}" if bracketed else f"{ip}:{port}"


def _checked_name(host: str) -> str:
    labels = host.split(".")
    # A name of digits alone is an address with a mistake in it.
    if len(host) > _LONGEST_NAME or not all(map(_LABEL.fullmatch, labels)) or labels[-1].isdecimal():
        raise _bad_address("it is neither an IP address nor a host name")
    return host.lower()


def _bad_address(why: str) -> ConfigError:
    remedy = "write HOST:PORT, such as 192.0.2.7:7946 or [2001:db8::7]:7946"
    return ConfigError(f"the address of a member: {why}", remedy=remedy)


def _read(raw: bytes) -> JoinCode:
    """The fields of bytes whose checksum fits; they may still be another program's."""
    start = _length_at(raw)
    if start >= len(raw) - _CHECKSUM_BYTES or len(raw) != _whole_length(raw):
        raise JoinCodeDamaged("the join code's parts do not fit together", remedy=_COPY_AGAIN)
    try:
        address = checked_address(raw[start + 1 : -_CHECKSUM_BYTES].decode("ascii"))
    except (UnicodeDecodeError, ConfigError):
        raise JoinCodeDamaged("the join code carries no usable address", remedy=_COPY_AGAIN) from None
    return JoinCode(address, raw[2:start] if raw[1] & _HAS_SECRET else None)


def _unreadable(version: int, written: str) -> JoinCodeRefused:
    """Cut off, or damaged: a code says itself how long it is."""
    sound = (_ALPHABET.match(written) or [""])[0]
    # What stands before a cut, without the bits of a byte that is not whole.
    raw = base64.urlsafe_b64decode(sound[: len(sound) // 4 * 4])
    short = len(raw) < 2 or len(raw) <= _length_at(raw) or len(written) < len(_text(bytes(_whole_length(raw))))
    if version == VERSION and sound == written and short:
        return JoinCodeTruncated("the join code is cut off: its end is missing", remedy=_COPY_AGAIN)
    return JoinCodeDamaged("the join code is damaged: its checksum does not fit", remedy=_COPY_AGAIN)


def _length_at(raw: bytes) -> int:
    """Where the length of the address stands."""
    return 2 + (SECRET_BYTES if raw[1] & _HAS_SECRET else 0)


def _whole_length(raw: bytes) -> int:
    start = _length_at(raw)
    return start + 1 + raw[start] + _CHECKSUM_BYTES


def _is_whole(raw: bytes) -> bool:
    return len(raw) >= 2 + _CHECKSUM_BYTES and raw[-_CHECKSUM_BYTES:] == _checksum(raw[:-_CHECKSUM_BYTES])


def _checksum(content: bytes) -> bytes:
    return zlib.crc32(content).to_bytes(_CHECKSUM_BYTES, "big")


def _text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def _bytes(written: str) -> bytes | None:
    """None: nothing that `_text` writes. Its last character has bits to spare, which must be 0."""
    if not _ALPHABET.fullmatch(written):
        return None
    try:
        raw = base64.urlsafe_b64decode(written + "=" * (-len(written) % 4))
    except binascii.Error:
        return None
    return raw if _text(raw) == written else None

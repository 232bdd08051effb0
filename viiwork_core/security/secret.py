"""The mesh secret: read once from the environment, kept only as the keys derived from it."""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from viiwork_core.errors import ConfigError

SECRET_BYTES = 32


@dataclass(frozen=True, slots=True, repr=False)
class MeshSecret:
    """The keys of a secured mesh, 32 bytes each, one a purpose.

    Each is derived for itself, so that what one subsystem leaks or logs says nothing about the others. The secret
    itself is not kept.
    """

    gossip: bytes
    signature: bytes
    replica: bytes
    session: bytes
    id: str
    """8 hex characters that tell secrets apart and say nothing about them. Safe to show."""

    @classmethod
    def from_bytes(cls, secret: bytes) -> MeshSecret:
        """Derive all keys. `secret` is exactly 32 bytes; ValueError otherwise."""
        if len(secret) != SECRET_BYTES:
            raise ValueError(f"a mesh secret has {SECRET_BYTES} bytes")
        keys = {label: _derive(secret, label) for label in ("gossip", "signature", "replica", "session")}
        return cls(**keys, id=_derive(secret, "id")[:4].hex())

    def __repr__(self) -> str:
        return "MeshSecret(...)"


def load_secret(environ: Mapping[str, str], *, variable: str, open_mesh: bool) -> MeshSecret | None:
    """The keys of the secret in `environ[variable]`. None: the mesh is open. Raises ConfigError as `read_secret`."""
    secret = read_secret(environ, variable=variable, open_mesh=open_mesh)
    return None if secret is None else MeshSecret.from_bytes(secret)


def read_secret(environ: Mapping[str, str], *, variable: str, open_mesh: bool) -> bytes | None:
    """The secret itself: 32 bytes, from standard base64. None: the mesh is open. For what hands it on: a join code,
    and a setup that keeps it.

    Raises ConfigError, naming the variable, when neither or both of a secret and an open mesh are configured, and
    when the value is malformed. The value itself is never part of the text.
    """
    value = environ.get(variable, "").strip()
    if open_mesh:
        _refuse_both(value, variable)
        return None
    if not value:
        raise ConfigError(
            f"mesh: {variable} is not set and mesh.open is not true",
            remedy=f"make a secret once and give the same to every node: {_make_line(variable)}; or write mesh.open: "
            "true to run without one",
        )
    return _decode(value, variable)


class _Sessions(Protocol):
    """A secret, or a ring of them."""

    @property
    def session(self) -> bytes: ...


class SessionKeys:
    """Turns what names a session into the key that nodes compare and keep.

    Equal values give equal keys on every node of a mesh, so that any entry node finds the conversation again. In an
    open mesh the hash is keyed with the mesh's name, which is no secret: whoever knows or guesses a session's header
    can compute its key there.
    """

    def __init__(self, secret: _Sessions | None, *, mesh: str) -> None:
        """With a ring the secret in use counts: when that changes, every session begins anew."""
        self._secret = secret
        self._open = _derive(mesh.encode(), "session")

    def session_key(self, value: str) -> str:
        """32 hex characters, safe as a file name."""
        # Strings from JSON may hold lone surrogates, which strict UTF-8 refuses.
        data = value.encode("utf-8", "surrogatepass")
        return hashlib.blake2b(data, digest_size=16, key=self._key).hexdigest()

    def conversation_key(self) -> bytes:
        """32 bytes that the hashes of messages are keyed with."""
        return hashlib.blake2b(b"conversation", digest_size=32, key=self._key).digest()

    @property
    def _key(self) -> bytes:
        return self._open if self._secret is None else self._secret.session


def _derive(secret: bytes, label: str) -> bytes:
    return HKDF(algorithm=SHA256(), length=32, salt=None, info=b"viiwork " + label.encode()).derive(secret)


def _refuse_both(value: str, variable: str) -> None:
    if value:
        raise ConfigError(
            f"mesh: {variable} is set and mesh.open is true; a mesh is either secured or open",
            remedy=f"unset {variable}, or remove mesh.open",
        )


def _decode(value: str, variable: str) -> bytes:
    try:
        secret = base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        secret = b""
    if len(secret) != SECRET_BYTES:
        raise ConfigError(
            f"mesh: {variable} is not the standard base64 of exactly {SECRET_BYTES} bytes",
            remedy=f"make one with: {_make_line(variable)}",
        ) from None
    return secret


def _make_line(variable: str) -> str:
    return f'export {variable}="$(head -c {SECRET_BYTES} /dev/urandom | base64)"'

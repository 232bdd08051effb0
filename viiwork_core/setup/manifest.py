"""The manifest: what `viiwork init` wrote here, so that `viiwork uninstall` removes that and nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

import msgspec

from viiwork_core.errors import ConfigError
from viiwork_core.setup.locations import Locations
from viiwork_core.setup.service import Subject

VERSION: Final = 1
NAME: Final = "manifest.json"
_MAX_BYTES: Final = 1 << 20


class Entry(msgspec.Struct, frozen=True):
    """A file that was written."""

    path: Path
    sha256: str
    backup: Path | None = None
    """Where what stood there before lies now."""


class Manifest(msgspec.Struct, frozen=True):
    """One installation."""

    version: int
    service: str
    """Name of what keeps the node running."""

    program: Path
    """The `viiwork` command of it."""

    state: Path
    """node.state_dir."""

    grace_s: float
    """How long requests that run may hold up its end."""

    files: tuple[Entry, ...]
    folders: tuple[Path, ...] = ()
    """Folders that were made for them, the outermost first."""

    def subject(self, locations: Locations) -> Subject:
        """The node that was installed; `locations`: where it was written, of this machine or user."""
        return Subject(replace(locations, state=self.state), self.program, grace_s=self.grace_s)

    def entry(self, path: Path) -> Entry | None:
        """That of a path."""
        return next((entry for entry in self.files if entry.path == path), None)

    def text(self) -> str:
        """As it is on disk."""
        encoded = msgspec.json.encode(self, enc_hook=str)
        return msgspec.json.format(encoded, indent=2).decode() + "\n"


def read_manifest(records: Path) -> Manifest | None:
    """That of this machine or user; None: `viiwork init` has not written here. Raises ConfigError."""
    path = records / NAME
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}", remedy="run the command with sudo") from error
    return _decoded(path, content)


def _decoded(path: Path, content: bytes) -> Manifest:
    remedy = "remove by hand what was installed, and this file after it"
    if len(content) > _MAX_BYTES:
        raise ConfigError(f"{path}: is over 1 MiB, which no manifest is", remedy=remedy)
    try:
        found = msgspec.json.decode(content, type=Manifest, dec_hook=as_path)
    except msgspec.DecodeError as error:
        raise ConfigError(f"{path}: is no manifest: {error}", remedy=remedy) from None
    if found.version != VERSION:
        what = f"{path}: was written by another version of viiwork (manifest {found.version}, here {VERSION})"
        raise ConfigError(what, remedy="run that version's `viiwork uninstall`")
    return found


def as_path(kind: type, value: object) -> Path:
    """A path of a record: absolute. Raises ValueError, which msgspec turns into an error that says where."""
    if kind is not Path or not isinstance(value, str) or not Path(value).is_absolute():
        raise ValueError(f"{value!r} is no absolute path")
    return Path(value)

"""The file of a node's aliases: read at the start, and written whole: a crash leaves the old one or the new."""

from __future__ import annotations

import os
from pathlib import Path

from viiwork_core.errors import ConfigError, ViiworkError
from viiwork_core.mesh.alias_text import decode_table, encode_table
from viiwork_core.mesh.aliases import AliasTable

FILE = "aliases.json"


class AliasStore:
    """`state_dir`/aliases.json. Both methods block."""

    def __init__(self, state_dir: Path) -> None:
        self.path = state_dir / FILE

    def load(self) -> AliasTable:
        """The table; empty when there is no file. Raises ConfigError for one that cannot be read."""
        try:
            return decode_table(self.path.read_bytes())
        except FileNotFoundError:
            return AliasTable()
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"{self.path}: the aliases cannot be read: {error}",
                remedy="put back a good copy, or move the file away: this node then takes the aliases of the other "
                "members, and a node without others starts with none",
            ) from error

    def save(self, table: AliasTable) -> None:
        """Put a table on disk. Raises ViiworkError; then the old one is still there."""
        fresh = self.path.with_suffix(".new")
        try:
            with fresh.open("wb") as file:
                file.write(encode_table(table) + b"\n")
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(self.path)
            _sync(self.path.parent)
        except OSError as error:
            what = f"the aliases cannot be written to {self.path}: {error.strerror}"
            raise ViiworkError(what, remedy="make room there, or make it writable") from error


def _sync(folder: Path) -> None:
    """Put a rename on disk."""
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)

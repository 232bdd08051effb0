"""The file of a node's table: read at the start, and written whole."""

from __future__ import annotations

from pathlib import Path
from typing import Generic

from viiwork_core.atomic_file import write_atomically
from viiwork_core.errors import ConfigError, ViiworkError
from viiwork_core.mesh.table import Table, W
from viiwork_core.mesh.table_text import TableText


class TableStore(Generic[W]):
    """A file for the node's user alone. Both methods block."""

    def __init__(self, path: Path, text: TableText[W]) -> None:
        self.path = path
        self.text = text

    def load(self) -> Table[W]:
        """The table; empty when there is no file. Raises ConfigError for one that cannot be read."""
        what = self.text.field
        try:
            return self.text.decode(self.path.read_bytes())
        except FileNotFoundError:
            return self.text.table()
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"{self.path}: the {what} cannot be read: {error}",
                remedy=f"put back a good copy, or move the file away: this node then takes the {what} of the other "
                "members, and a node without others starts with none",
            ) from error

    def save(self, table: Table[W]) -> None:
        """Put a table on disk. Raises ViiworkError; then the old one is still there."""
        try:
            write_atomically(self.path, self.text.encode(table) + b"\n")
        except OSError as error:
            what = f"the {self.text.field} cannot be written to {self.path}: {error.strerror}"
            raise ViiworkError(what, remedy="make room there, or make it writable") from error

"""The file of a node's aliases."""

from __future__ import annotations

from pathlib import Path

from viiwork_core.mesh.alias_text import ALIASES
from viiwork_core.mesh.aliases import Write
from viiwork_core.mesh.table_store import TableStore

FILE = "aliases.json"


class AliasStore(TableStore[Write]):
    """`state_dir`/aliases.json."""

    def __init__(self, state_dir: Path) -> None:
        super().__init__(state_dir / FILE, ALIASES)

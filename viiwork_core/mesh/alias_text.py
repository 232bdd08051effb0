"""Aliases as JSON: a name has "target" and "fallbacks" besides what every table has."""

from __future__ import annotations

from viiwork_core.mesh.aliases import NAME, AliasTable, Write
from viiwork_core.mesh.table_text import TableText

ALIASES = TableText(table=AliasTable, write=Write, field="aliases", one="an alias", name=NAME)

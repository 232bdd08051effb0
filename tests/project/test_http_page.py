"""docs/http.md names every path that a node answers."""

from __future__ import annotations

import re
from pathlib import Path

from viiwork_core.mesh.greeting import PATH as GREETING

ROOT = Path(__file__).parents[2]
_PATH = re.compile(r"""["'](/(?:v1/|api\.json|health|metrics|login|logout|static|mesh|chat|why)[\w./-]*)""")


def test_it_names_every_path() -> None:
    page = (ROOT / "docs" / "http.md").read_text()
    sources = [path.read_text() for path in (ROOT / "viiwork_core" / "web").glob("*.py")]
    paths = {path.rstrip("/") for source in sources for path in _PATH.findall(source)} | {GREETING}
    assert len(paths) > 25
    assert sorted(path for path in paths if path not in page) == []

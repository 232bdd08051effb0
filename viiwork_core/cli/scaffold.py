"""Writes a new plugin from the templates beside this module."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from keyword import iskeyword
from pathlib import Path
from string import Template

from viiwork_core.contracts.version import API_MAJOR, API_MINOR
from viiwork_core.errors import ConfigError

KINDS = ("engine", "policy", "discovery", "cache", "listener")
"""What a plugin can be of."""

_NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
_SOURCES = {"cache": ("engine", "cache")}
"""Folders of templates that a kind is made of, where it is not only its own."""

_NEEDS = {"engine": ', "httpx>=0.28", "pydantic>=2.10"', "cache": ', "httpx>=0.28", "pydantic>=2.10"'}
_SUFFIX = ".tmpl"


def write_plugin(kind: str, name: str, parent: Path) -> Path:
    """Write a distribution that offers one `kind` called `name` into a new folder of that name, and return the folder.

    Raises ConfigError for a name that cannot be used, and for a folder that exists.
    """
    if not _NAME.fullmatch(name) or iskeyword(name) or len(name) > 20:
        remedy = "take lowercase letters and digits, with single underscores between, 20 at most: my_engine"
        raise ConfigError(f"a plugin cannot be called {name!r}", remedy=remedy)
    folder = parent / name
    if folder.exists():
        raise ConfigError(f"{folder.name} exists already", remedy="remove it, or take another name")
    words, templates = _words(kind, name), files("viiwork_core.cli") / "templates"
    for source in (*_SOURCES.get(kind, (kind,)), "shared"):
        for where, text in _below(templates / source, folder):
            # Of two templates for one file the later counts.
            where.parent.mkdir(parents=True, exist_ok=True)
            where.write_text(Template(text).substitute(words), encoding="utf-8")
    (folder / "package").rename(folder / words["package"])
    (folder / words["package"] / "py.typed").touch()
    return folder


def _words(kind: str, name: str) -> dict[str, str]:
    """What the templates leave open."""
    distribution = ("viiwork-discovery-" if kind == "discovery" else "viiwork-") + name.replace("_", "-")
    return {
        "kind": kind,
        "name": name,
        "title": "".join(part.capitalize() for part in name.split("_")),
        "distribution": distribution,
        "package": distribution.replace("-", "_"),
        "entry": f"discovery_{name}" if kind == "discovery" else name,
        "api": f"({API_MAJOR}, {API_MINOR})",
        "needs": _NEEDS.get(kind, ""),
    }


def _below(source: Traversable, folder: Path) -> Iterator[tuple[Path, str]]:
    """Where each template goes, and what it says."""
    for entry in source.iterdir():
        if entry.is_dir():
            yield from _below(entry, folder / entry.name)
        elif entry.name.endswith(_SUFFIX):
            yield folder / entry.name.removesuffix(_SUFFIX), entry.read_text(encoding="utf-8")

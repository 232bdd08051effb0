"""Writes the pages for plugin authors that are made from the code.

    python -m viiwork_core.testing.pages docs/plugins

hooks.md and api.txt as a whole; in testing.md only what is between the marks.
"""

from __future__ import annotations

import argparse
import inspect
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from viiwork_core.contracts.version import API_MAJOR, API_MINOR
from viiwork_core.testing.cache_kit import CACHE_CLAUSES
from viiwork_core.testing.clauses import Clause
from viiwork_core.testing.discovery_kit import DISCOVERY_CLAUSES
from viiwork_core.testing.engine_kit import ENGINE_CLAUSES
from viiwork_core.testing.listener_kit import LISTENER_CLAUSES
from viiwork_core.testing.policy_kit import POLICY_CLAUSES
from viiwork_core.testing.surface import hooks, listing

SECTIONS = ("When", "Thread", "Returns", "If it raises", "Since")
"""What a hook's docstring answers after its first sentence, in this order."""

CLAUSES: Mapping[str, Sequence[Clause[Any]]] = {
    "engine": ENGINE_CLAUSES,
    "cache": CACHE_CLAUSES,
    "discovery": DISCOVERY_CLAUSES,
    "policy": POLICY_CLAUSES,
    "listener": LISTENER_CLAUSES,
}
_MARKED = re.compile(r"(<!-- clauses of the (\w+) kit -->\n)(.*?)(<!-- end -->)", re.DOTALL)

_HOOKS_HEAD = f"""# Hooks

<!-- Made from the docstrings of viiwork_core/hookspecs.py by `make docs`: change them, not this page. -->

A plugin is a module that an entry point of the group `viiwork` names. It implements any of these functions, each marked
with `hookimpl`, and may state the plugin API that it was written for: `VIIWORK_API = ({API_MAJOR}, {API_MINOR})`.

This viiwork has plugin API {API_MAJOR}.{API_MINOR}. It refuses a plugin that was written for another first number or a
higher second one, in one sentence that `viiwork plugin list` shows.

The hooks only collect classes, and commands. What classes implement is in `viiwork_core/contracts/`;
[api.txt](api.txt) lists every public name with its signature.
"""


def read_hook(hook: object) -> tuple[str, dict[str, str]]:
    """The first paragraph of a hook's docstring, and the text of each section by its title."""
    first, _, rest = (inspect.getdoc(hook) or "").partition("\n\n")
    sections: dict[str, str] = {}
    title = ""
    for line in rest.splitlines():
        head, colon, text = line.partition(": ")
        begins = bool(colon) and head in SECTIONS
        title = head if begins else title
        sections[title] = f"{sections.get(title, '')} {text if begins else line.strip()}".strip()
    return " ".join(first.split()), sections


def hooks_page() -> str:
    """docs/plugins/hooks.md."""
    parts = [_HOOKS_HEAD]
    for name, hook in hooks():
        first, sections = read_hook(hook)
        table = "\n".join(f"| {title} | {text} |" for title, text in sections.items())
        parts.append(f"## {name}\n\n{first}\n\n```python\n{_example(name, hook)}```\n\n| | |\n|---|---|\n{table}\n")
    return "\n".join(parts)


def _example(name: str, hook: object) -> str:
    returns = str(inspect.signature(hook).return_annotation)  # type: ignore[arg-type]
    one = returns.partition(" | ")[0]
    module, _, kind = one.removeprefix("type[").removesuffix("]").rpartition(".")
    imported = f"import {module}\n\n\n" if module else ""
    made = f"my_{kind.lower()}" if module else f"My{kind}"
    return f"{imported}@hookimpl\ndef {name}() -> {one}:\n    return {made}\n"


def with_clauses(page: str) -> str:
    """docs/plugins/testing.md with the clauses as they are. Raises KeyError for the mark of an unknown kit."""
    return _MARKED.sub(lambda found: f"{found[1]}{_clause_table(CLAUSES[found[2]])}{found[4]}", page)


def _clause_table(clauses: Sequence[Clause[Any]]) -> str:
    rows = "\n".join(f"| {clause.number} | {clause.rule} |" for clause in clauses)
    return f"| | |\n|---|---|\n{rows}\n"


def main() -> None:
    """Write all three."""
    parser = argparse.ArgumentParser(prog="python -m viiwork_core.testing.pages", description="Pages from the code.")
    parser.add_argument("folder", type=Path, help="docs/plugins")
    folder: Path = parser.parse_args().folder
    (folder / "hooks.md").write_text(hooks_page(), encoding="utf-8")
    (folder / "api.txt").write_text(listing(), encoding="utf-8")
    testing = folder / "testing.md"
    testing.write_text(with_clauses(testing.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()

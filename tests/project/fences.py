"""The code blocks of the documents: where each stands, and what is to be done with it.

A block that cannot be run says why in a comment before it: <!-- not run: it needs a tailnet -->
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PATTERNS = ("README.md", "CONTRIBUTING.md", "docs/**/*.md", "plugins/*/README.md", "examples/*/README.md")

SHOWN = {"", "text", "console"}
"""Output and the like: not code."""

ELSEWHERE = {
    "README.md": ({"python", "toml", "yaml"}, "test_documents.py"),
    "docs/plugins/tutorial.md": ({"python", "toml", "yaml"}, "test_tutorial.py"),
    "docs/plugins/tutorial-engine.md": ({"python", "toml", "yaml"}, "test_tutorial_engine.py"),
    "docs/plugins/testing.md": ({"python"}, "test_plugin_pages.py"),
    "examples/engine_vllm/README.md": ({"yaml"}, "test_tutorial_engine.py"),
    "examples/policy_cheapest_power/README.md": ({"yaml"}, "test_worked_example.py"),
}
"""Pages whose blocks of these languages have tests of their own, since they need each other or a plugin."""

_NOTE = re.compile(r"<!-- not run: (.+?) -->")


@dataclass(frozen=True)
class Fence:
    """One block between ``` and ```."""

    page: str
    """The document, from the repository's root."""

    line: int
    language: str
    text: str

    note: str | None
    """Why it is not run, if it is not."""

    @property
    def where(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def elsewhere(self) -> str | None:
        """The test that runs it besides this."""
        languages, test = ELSEWHERE.get(self.page, (set(), ""))
        return test if self.language in languages else None


def pages() -> list[Path]:
    """All documents."""
    return [path for pattern in PATTERNS for path in sorted(ROOT.glob(pattern))]


def fences(path: Path) -> Iterator[Fence]:
    """A document's blocks, from top to bottom."""
    lines = path.read_text().splitlines()
    page = path.relative_to(ROOT).as_posix()
    begun: int | None = None
    for number, line in enumerate(lines):
        if not line.startswith("```"):
            continue
        if begun is None:
            begun = number
            continue
        said = [before for before in lines[max(0, begun - 2) : begun] if before][-1:]
        note = _NOTE.fullmatch(said[0]) if said else None
        text = "\n".join(lines[begun + 1 : number]) + "\n"
        language = lines[begun].removeprefix("```").split(" ")[0]
        yield Fence(page, begun + 1, language, text, note and note[1])
        begun = None
    assert begun is None, f"{page}:{begun}: a block without an end"


def all_fences() -> list[Fence]:
    return [fence for path in pages() for fence in fences(path)]


def commands(path: Path) -> Iterator[tuple[int, str]]:
    """Each `viiwork ...` that stands on a line of its own in a block, fenced or indented, with its line's number.

    Not the usage lines, `viiwork alias [OPTIONS] ...`, which are made from the commands themselves.
    """
    fenced = False
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if line.startswith("```"):
            fenced = not fenced
        found = re.match(r"(?:sudo )?viiwork (.+)", line.strip())
        if found and (fenced or line.startswith("    ")) and "[OPTIONS]" not in found[1]:
            yield number, found[1]

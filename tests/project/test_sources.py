"""What holds for every source file: sizes, docstrings, no traces of a machine."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAX_FUNCTION = 60
MAX_FILE = 350
NAMELESS = {"utils", "helpers", "common", "manager", "base", "misc"}
MACHINE = re.compile(r"(?<![\w.~])/(home/(?!somebody\b)|Users/|root/|work/)\w")


def _tracked() -> list[Path]:
    """What is in the tree, or would be with the next commit."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    if listed.returncode:
        pytest.skip("this is no git checkout")
    return [path for name in listed.stdout.decode().split("\0") if name and (path := ROOT / name).is_file()]


def _names(paths: list[Path]) -> list[str]:
    return sorted(str(path.relative_to(ROOT)) for path in paths)


@pytest.fixture(scope="module")
def tracked() -> list[Path]:
    return _tracked()


@pytest.fixture(scope="module")
def sources(tracked: list[Path]) -> dict[Path, ast.Module]:
    found = {path: ast.parse(path.read_text()) for path in tracked if path.suffix == ".py"}
    assert len(found) > 100
    return found


def _shipped(path: Path) -> bool:
    parts = path.relative_to(ROOT).parts
    return parts[0] in {"viiwork_core", "demo"} or (parts[0] == "plugins" and parts[2] != "tests")


def test_shipped_files_are_short(sources: dict[Path, ast.Module]) -> None:
    long = {path for path in sources if _shipped(path) and len(path.read_text().splitlines()) > MAX_FILE}
    assert not _names(list(long)), f"over {MAX_FILE} lines: split by what they are about"


def test_functions_are_short(sources: dict[Path, ast.Module]) -> None:
    functions = (
        (path, node)
        for path, module in sources.items()
        for node in ast.walk(module)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    long = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"
        for path, node in functions
        if node.end_lineno is not None and node.end_lineno - node.lineno >= MAX_FUNCTION
    ]
    assert not long, f"over {MAX_FUNCTION} lines"


def test_every_module_says_what_it_is(sources: dict[Path, ast.Module]) -> None:
    silent = [path for path, module in sources.items() if module.body and not ast.get_docstring(module)]
    assert not _names(silent)


def test_modules_are_named_for_what_they_hold(sources: dict[Path, ast.Module]) -> None:
    assert not _names([path for path in sources if path.stem in NAMELESS])


def test_the_glossary_has_the_modules_of_the_core(sources: dict[Path, ast.Module]) -> None:
    glossary = (ROOT / "docs" / "glossary.md").read_text()
    core = [path.relative_to(ROOT / "viiwork_core").with_suffix("") for path in sources if "viiwork_core" in path.parts]
    own = [path for path in core if path.name not in {"__init__", "errors"} and path.parts[0] not in {"testing", "cli"}]
    missing = [str(path) for path in own if f"`{path}`" not in glossary and path.parts[0] != "observe"]
    assert not missing, "docs/glossary.md does not tell these words"


def test_nothing_tells_of_the_machine_it_was_made_on(tracked: list[Path]) -> None:
    here = [str(ROOT), f"{Path.home()}/"]
    told = []
    for path in tracked:
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        told += [path] if MACHINE.search(text) or any(place in text for place in here if len(place) > 2) else []
    assert not _names(told)

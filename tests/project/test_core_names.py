"""The core knows no engine: none is named in its code. Comments and docstrings may tell where a rule comes from."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CORE = ROOT / "viiwork_core"
ENGINES = re.compile(
    r"llama[._ -]?(cpp|server)|mlx|strata|vllm|sglang|ollama|lm[_ -]?studio|tgi|exllama|koboldcpp|gguf|safetensors",
    re.IGNORECASE,
)
_NAMING = frozenset({"id", "attr", "name", "arg", "module"})
"""Fields of a node that hold an identifier."""


def sources() -> list[Path]:
    """All of the core but the kits: the fakes and tiny models there are in some engines' shapes, on purpose."""
    found = [path for path in CORE.rglob("*") if path.suffix in {".py", ".tmpl", ".html", ".js", ".css"}]
    return sorted(path for path in found if path.relative_to(CORE).parts[0] != "testing")


def told(path: Path) -> Iterator[str]:
    """Each name and text of a file that is no documentation."""
    if path.suffix != ".py":
        yield from path.read_text().splitlines()
        return
    tree = ast.parse(path.read_text())
    documentation = {
        id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documentation:
            yield node.value
        yield from (str(value) for field, value in ast.iter_fields(node) if field in _NAMING)


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(CORE)))
def test_the_core_names_no_engine(path: Path) -> None:
    assert not ENGINES.search(str(path.relative_to(ROOT)))
    assert not [text for text in told(path) if ENGINES.search(text)]


def test_what_is_looked_for_would_be_found(tmp_path: Path) -> None:
    code = tmp_path / "code.py"
    code.write_text('"""As mlx does."""\nif engine == "llamacpp":  # strata\n    import viiwork_strata\n')
    assert [text for text in told(code) if ENGINES.search(text)] == ["llamacpp", "viiwork_strata"]

"""docs/init.md tells every answer, and what it shows is read."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel

from viiwork_core.setup.answers import Answers, ApiAnswer, MeshAnswer, ModelAnswer, NodeAnswer, parse_answers
from viiwork_core.setup.services import SERVICES

PAGE = (Path(__file__).parents[2] / "docs" / "init.md").read_text()
BLOCKS: dict[str, type[BaseModel]] = {
    "": Answers,
    "models[].": ModelAnswer,
    "node.": NodeAnswer,
    "api.": ApiAnswer,
    "mesh.": MeshAnswer,
}


def keys() -> Iterator[str]:
    for prefix, block in BLOCKS.items():
        yield from (f"{prefix}{name}" for name in block.model_fields if f"{name}." not in BLOCKS)


def test_every_key_is_told_and_no_other() -> None:
    rows = [line for line in PAGE.partition("## Answers")[2].splitlines() if line.startswith("| `")]
    told = {key for row in rows for key in re.findall(r"`([^`]+)`", row.split("|")[1])}
    assert told == set(keys())


def test_the_answers_that_it_shows_are_some() -> None:
    shown = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert [parse_answers(text).mesh.mode for text in shown] == ["join"]


def test_every_service_is_told() -> None:
    assert all(f"`{kind.name}`" in PAGE for kind in SERVICES)

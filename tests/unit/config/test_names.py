"""Names of nodes: what reaches headers, logs and other machines is plain, or is refused here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from viiwork_core.config.load import load_config
from viiwork_core.errors import ConfigError


def named(name: str, folder: Path) -> str:
    file = folder / "viiwork.yaml"
    file.write_text(json.dumps({"node": {"name": name}}), encoding="utf-8")
    return load_config(file, {}).node.name


@pytest.mark.parametrize("name", ["attic", "A.b_c-9", "7", "n" * 80, "n" * 253])
def test_a_plain_name_is_taken(name: str, tmp_path: Path) -> None:
    assert named(name, tmp_path) == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        " ",
        "the attic",
        "attic ",
        "attic\n",
        'a"b',
        "a'b",
        "a/b",
        "a\\b",
        "<b>",
        "k\u00fcche",
        "\u53f0\u6240",
        "\u0661",
        "n" * 254,
    ],
)
def test_any_other_is_refused_with_what_may_be_in_one(name: str, tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"node\.name \(line 1\): must be 1 to 253 of the characters A-Z a-z 0-9 \. _ -"
    ):
        named(name, tmp_path)

"""The file of the scores."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from viiwork_core import NoOptions, Score, Spec
from viiwork_core.node.speeds import Speeds, speed_key
from viiwork_core.testing.fake_clock import FakeClock


@dataclass
class Engine:
    options: NoOptions = field(default_factory=NoOptions)


def model(name: str = "m", **spec: Any) -> Any:
    made = Spec(model=name, index=0, backends=1, path=Path("/models/m.gguf"), context=4096, parallel=2, **spec)
    return SimpleNamespace(name=name, backends=(SimpleNamespace(engine=Engine(), spec=made),))


def speeds(folder: Path, *models: Any) -> Speeds:
    made = Speeds(list(models) or [model()], folder / "perf.json", FakeClock())  # type: ignore[arg-type]  # iterated only
    made.open()
    return made


def measure(made: Speeds, name: str = "m") -> None:
    for tokens in (10, 10, 10, *[1000] * 5):
        made.scores.observe(name, uncached=tokens, first_token_ms=50 + tokens, now=FakeClock().monotonic())


def test_a_score_outlives_a_restart(tmp_path: Path) -> None:
    first = speeds(tmp_path)
    measure(first)
    assert first.score("m") == Score(50.0, 1000.0)
    first.save()
    assert speeds(tmp_path).score("m") == Score(50.0, 1000.0)
    saved = json.loads((tmp_path / "perf.json").read_text())["m"]
    assert saved.keys() == {"overhead_ms", "ms_per_1k", "at", "key"}
    assert saved["key"] == speed_key(model())


def test_another_setting_begins_anew(tmp_path: Path) -> None:
    first = speeds(tmp_path)
    measure(first)
    assert first.score("m") is not None
    first.save()
    assert speeds(tmp_path, model(gpus=(1,))).score("m") is None


@pytest.mark.parametrize("text", ["", "[]", '{"m": {"overhead_ms": -1}}', '{"m": 1}', "\x00"])
def test_a_broken_file_is_measured_anew(tmp_path: Path, text: str) -> None:
    (tmp_path / "perf.json").write_text(text)
    made = speeds(tmp_path)
    assert made.score("m") is None
    measure(made)
    assert made.score("m") is not None
    made.save()
    assert "ms_per_1k" in (tmp_path / "perf.json").read_text()


def test_what_cannot_be_written_is_told_and_no_more(tmp_path: Path) -> None:
    made = speeds(tmp_path / "missing")
    measure(made)
    assert made.score("m") is not None
    made.save()
    assert not (tmp_path / "missing").exists()


def test_nothing_is_written_for_nothing(tmp_path: Path) -> None:
    speeds(tmp_path).save()
    assert not (tmp_path / "perf.json").exists()

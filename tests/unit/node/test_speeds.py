"""The file of the scores."""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from viiwork_core import NoOptions, Score, Spec
from viiwork_core.node.speeds import SMALL, Speeds, speed_key
from viiwork_core.testing.fake_clock import FakeClock


@dataclass
class Engine:
    options: NoOptions = field(default_factory=NoOptions)


def model(name: str = "m", path: Path | None = Path("/models/m.gguf"), **spec: Any) -> Any:
    made = Spec(model=name, index=0, backends=1, path=path, context=4096, parallel=2, **spec)
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


def test_other_settings_in_the_model_s_file_begin_anew(tmp_path: Path) -> None:
    settings = tmp_path / "settings.json"
    settings.write_text('{"args": ["--fast"]}')
    running = speeds(tmp_path, model(path=settings))
    measure(running)
    asyncio.run(running.follow())
    assert running.score("m") is not None
    settings.write_text('{"args": ["--slow"]}')
    asyncio.run(running.follow())
    assert running.score("m") is None


def test_a_file_of_weights_is_known_by_size_and_time(tmp_path: Path) -> None:
    weights = tmp_path / "m.gguf"
    weights.touch()
    os.truncate(weights, SMALL + 1)
    first = speed_key(model(path=weights))
    assert speed_key(model(path=weights)) == first
    os.utime(weights, (1, 1))
    later = speed_key(model(path=weights))
    os.truncate(weights, SMALL + 2)
    os.utime(weights, (1, 1))
    assert len({first, later, speed_key(model(path=weights))}) == 3


def test_without_a_file_there_is_a_key_all_the_same(tmp_path: Path) -> None:
    paths = (None, tmp_path, tmp_path / "missing")
    assert len({speed_key(model(path=path)) for path in paths}) == 3


def test_the_newest_list_of_models_holds(tmp_path: Path) -> None:
    """However late an earlier one has been looked at."""
    models = [model("old")]
    made = Speeds(models, tmp_path / "perf.json", FakeClock())  # type: ignore[arg-type]  # iterated only
    made.open()

    async def two_reloads() -> None:
        first = asyncio.ensure_future(made.follow())
        await asyncio.sleep(0)
        models[:] = [model("new")]
        await made.follow()
        await first

    asyncio.run(two_reloads())
    measure(made, "new")
    measure(made, "old")
    assert (made.score("old"), made.score("new") is not None) == (None, True)

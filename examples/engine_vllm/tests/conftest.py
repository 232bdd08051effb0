"""A `vllm` on PATH that has no model, and what the plugin is tried with."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest
from viiwork_core import Context, Spec
from viiwork_core.testing.engine_kit import kit_context

HERE = Path(__file__).parent


@pytest.fixture
def vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the fake `vllm`, the first one on PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    command = shlex.join([sys.executable, str(HERE / "fake_vllm.py")])
    (folder / "vllm").write_text(f'#!/bin/sh\nexec {command} "$@"\n')
    (folder / "vllm").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    return folder


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model's folder, as complete as it looks from outside."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text('{"num_attention_heads": 32, "max_position_embeddings": 8192}')
    for name in ("tokenizer.json", "model-00001-of-00002.safetensors"):
        (folder / name).touch()
    return folder


@pytest.fixture
def context(tmp_path: Path) -> Context:
    return kit_context(tmp_path)


@pytest.fixture
def spec(model: Path) -> Spec:
    return Spec(model="tiny", index=0, backends=1, path=model, context=4096, parallel=2, port=4001, gpus=(0,))

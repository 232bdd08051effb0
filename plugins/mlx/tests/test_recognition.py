"""What the MLX plugin recognises in a folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from viiwork_core import FolderListing, FoundModel
from viiwork_mlx.recognition import called, recognize

CONFIG = {
    "model_type": "llama",
    "max_position_embeddings": 4096,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_size": 64,
    "quantization": {"bits": 4, "group_size": 64},
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "Tiny-4bit"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "tokenizer.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(bytes(100))
    return folder


def found(folder: Path) -> list[FoundModel]:
    return list(recognize(FolderListing(folder, {one.name: one.stat().st_size for one in folder.iterdir()})))


def test_a_folder(folder: Path) -> None:
    assert found(folder) == [FoundModel("tiny", folder, 100, "llama 4 bit", 4096, 2 * 2 * 2 * 16 * 2)]


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_folder_that_is_something_else(folder: Path, name: str) -> None:
    (folder / name).unlink()
    assert found(folder) == []


@pytest.mark.parametrize("config", ["{", "[1]", "{}", "", "[" * 100_000, '{"model_type": 3}'])
def test_a_configuration_that_is_none(folder: Path, config: str) -> None:
    (folder / "config.json").write_text(config)
    assert found(folder) == []


def test_a_missing_tokenizer_is_told(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    (one,) = found(folder)
    assert one.problem.startswith("its tokenizer (tokenizer.json or ")


def test_a_missing_part_is_told(folder: Path) -> None:
    index = {"weight_map": {"a": "model.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (one,) = found(folder)
    assert one.problem == "model-00002-of-00002.safetensors is missing; fetch the whole folder"


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/models/Qwen3-Coder-30B-A3B-Instruct-4bit", "qwen3-coder-30b-a3b-instruct"),
        ("/models/Llama-3.2-1B-MLX-8bit-DWQ", "llama-3.2-1b"),
        ("/hub/models--acme--Big-7B-bf16/snapshots/0123abcd", "big-7b"),
        ("/models/4bit", "4bit"),
    ],
)
def test_names(path: str, name: str) -> None:
    assert called(Path(path)) == name

"""What llama.cpp's plugin recognises in a folder, real tiny models and made headers."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path

import pytest

from viiwork_core import FolderListing, FoundModel
from viiwork_core.testing.tiny_model import CONTEXT, HEAD_DIM, KV_HEADS, LAYERS, write_gguf
from viiwork_llamacpp.recognition import called, recognize

LLAMA = {
    "general.architecture": "llama",
    "llama.context_length": 8192,
    "llama.block_count": 4,
    "llama.embedding_length": 512,
    "llama.attention.head_count": 8,
}


def header(path: Path, values: Mapping[str, str | int]) -> Path:
    """A GGUF file without tensors."""

    def text(words: str) -> bytes:
        return struct.pack("<Q", len(words)) + words.encode()

    def pair(key: str, value: str | int) -> bytes:
        said = struct.pack("<I", 8) + text(value) if isinstance(value, str) else struct.pack("<IQ", 10, value)
        return text(key) + said

    data = b"GGUF" + struct.pack("<IQQ", 3, 0, len(values)) + b"".join(pair(*one) for one in values.items())
    path.write_bytes(data.ljust(-(-len(data) // 32) * 32, b"\0"))
    return path


def listing(folder: Path) -> FolderListing:
    return FolderListing(folder, {one.name: one.stat().st_size for one in folder.iterdir()})


def found(folder: Path) -> list[FoundModel]:
    return list(recognize(listing(folder)))


def test_a_real_model(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "Tiny-1B-Q4_K_M.gguf")
    (tmp_path / "README.md").write_text("not a model")
    (one,) = found(tmp_path)
    assert (one.name, one.path, one.bytes, one.problem) == ("tiny-1b", path, path.stat().st_size, "")
    assert (one.context, one.kind) == (CONTEXT, "llama F32")
    assert one.token_bytes == LAYERS * KV_HEADS * (HEAD_DIM + HEAD_DIM) * 2


def test_parts_are_one_model(tmp_path: Path) -> None:
    for number in range(3):
        values = LLAMA | {"split.count": 3, "split.no": number}
        header(tmp_path / f"big-Q8_0-{number + 1:05}-of-00003.gguf", values)
    (one,) = found(tmp_path)
    assert (one.name, one.path.name, one.problem) == ("big", "big-Q8_0-00001-of-00003.gguf", "")
    assert one.bytes == sum(listing(tmp_path).files.values())


@pytest.mark.parametrize(
    ("there", "said"),
    [
        ((1, 3), "part 2 of 3 is missing; fetch all parts of it"),
        ((2, 3), "part 1 of 3 is missing; fetch all parts of it"),
        ((1,), "part 2 of 3 is missing, and 1 more; fetch all parts of it"),
        ((1, 2, 3, 7), "it has parts beyond 3; fetch all parts of it"),
    ],
)
def test_a_missing_part_is_told(tmp_path: Path, there: tuple[int, ...], said: str) -> None:
    for number in there:
        header(tmp_path / f"big-{number:05}-of-00003.gguf", LLAMA)
    (one,) = found(tmp_path)
    assert (one.path.name, one.problem) == ("big-00001-of-00003.gguf", said)


def test_a_name_that_speaks_of_many_parts_costs_nothing(tmp_path: Path) -> None:
    header(tmp_path / "big-00007-of-99999.gguf", LLAMA)
    (one,) = found(tmp_path)
    assert one.problem == "part 1 of 99999 is missing, and 99997 more; fetch all parts of it"


def test_what_is_damaged_is_told(tmp_path: Path) -> None:
    (tmp_path / "half.gguf").write_bytes(write_gguf(tmp_path / "whole.gguf").read_bytes()[:5000])
    half, whole = found(tmp_path)
    assert "half.gguf cannot be loaded" in half.problem
    assert "fetch it again" in half.problem
    assert whole.problem == ""


def test_a_projector_is_no_model(tmp_path: Path) -> None:
    header(tmp_path / "mmproj.gguf", {"general.architecture": "clip"})
    assert found(tmp_path) == []


def test_a_cache_is_told_where_the_file_lets_it_be_known(tmp_path: Path) -> None:
    header(tmp_path / "a.gguf", LLAMA)
    header(tmp_path / "b.gguf", LLAMA | {"llama.ssm.state_size": 16})
    header(tmp_path / "c.gguf", {"general.architecture": "llama"})
    assert [one.token_bytes for one in found(tmp_path)] == [4 * 8 * (64 + 64) * 2, None, None]


@pytest.mark.parametrize(
    ("stem", "name"),
    [
        ("Qwen3-8B-Q4_K_M", "qwen3-8b"),
        ("Qwen3-30B-A3B-UD-IQ2_XXS", "qwen3-30b-a3b"),
        ("gemma-3-27b-it.bf16", "gemma-3-27b-it"),
        ("gpt-oss-20b-mxfp4", "gpt-oss-20b"),
        ("My Model (v2)", "my-model-v2"),
        ("Q4_0", "q4_0"),
        ("\x1b[31m", "31m"),
        ("模型", "model"),
    ],
)
def test_names(stem: str, name: str) -> None:
    assert called(stem) == name

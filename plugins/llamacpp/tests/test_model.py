"""What a model's files say together."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path

import pytest

from viiwork_core import ConfigError
from viiwork_llamacpp.gguf_file import Tensor
from viiwork_llamacpp.model import K_QUANTS, Model, read_model

Values = Mapping[str, str | int]


def write(path: Path, values: Values, *, tensors: int = 1, kind: int = 0) -> Path:
    """A GGUF file with these values, and tensors of 256 x 4 weights of type F32 or another of the same size or less."""

    def text(words: str) -> bytes:
        return struct.pack("<Q", len(words)) + words.encode()

    def pair(key: str, value: str | int) -> bytes:
        said = struct.pack("<I", 8) + text(value) if isinstance(value, str) else struct.pack("<IQ", 10, value)
        return text(key) + said

    data = b"GGUF" + struct.pack("<IQQ", 3, tensors, len(values))
    data += b"".join(pair(key, value) for key, value in values.items())
    for number in range(tensors):
        data += text(f"blk.{number}.weight") + struct.pack("<IQQIQ", 2, 256, 4, kind, number * 4096)
    start = -(-len(data) // 32) * 32
    path.write_bytes(data.ljust(start, b"\0") + bytes(4096 * tensors))
    return path


LLAMA = {"general.architecture": "llama", "llama.context_length": 8192}


def test_the_facts_of_one_file(tmp_path: Path) -> None:
    model = read_model([write(tmp_path / "m.gguf", LLAMA, tensors=2)], "m")
    assert (model.architecture, model.trained_context, model.window, model.recurrent) == ("llama", 8192, None, False)
    assert [one.bytes for one in model.tensors] == [4096, 4096]
    assert model.unread == ""


@pytest.mark.parametrize(
    ("values", "window", "recurrent"),
    [
        ({"general.architecture": "gemma3", "gemma3.attention.sliding_window": 512}, 512, False),
        ({"general.architecture": "x", "x.attention.sliding_window": 0, "gemma3.ssm.state_size": 4}, None, False),
        ({"general.architecture": "jamba", "jamba.ssm.state_size": 16}, None, True),
        ({"general.architecture": "lfm2", "lfm2.shortconv.l_cache": 3}, None, True),
        ({"general.architecture": "rwkv7", "rwkv7.wkv.head_size": 64}, None, True),
    ],
)
def test_models_whose_cache_is_no_plain_list_of_tokens(
    tmp_path: Path, values: Values, window: int | None, recurrent: bool
) -> None:
    model = read_model([write(tmp_path / "m.gguf", values)], "m")
    assert (model.window, model.recurrent) == (window, recurrent)


def parts(folder: Path, *values: Values) -> list[Path]:
    count = len(values)
    return [write(folder / f"m-{n:05}-of-{count:05}.gguf", one) for n, one in enumerate(values, 1)]


def part(number: int, count: int, tensors: int) -> Values:
    return {"split.no": number, "split.count": count, "split.tensors.count": tensors}


def test_the_parts_of_a_model_are_read_together(tmp_path: Path) -> None:
    files = parts(tmp_path, {**LLAMA, **part(0, 2, 2)}, part(1, 2, 2))
    assert len(read_model(files, "m").tensors) == 2


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([{**LLAMA, **part(0, 2, 2)}, part(0, 2, 2)], "is another part than its name says"),
        ([{**LLAMA, **part(0, 2, 2)}, part(1, 3, 2)], "is another part than its name says"),
        ([{**LLAMA, **part(0, 3, 2)}, part(1, 3, 2)], "is one of 3 parts, and is named as one of 2"),
        ([{**LLAMA, **part(0, 2, 9)}, part(1, 2, 9)], "have 2 tensors together, and the first one says 9"),
        ([{**LLAMA, **part(0, 2, 2)}], "is one of 2 parts, and is named as one of 1"),
        ([{"llama.context_length": 1}], "does not name its architecture"),
        ([{"general.architecture": "clip"}], "a projector for pictures"),
    ],
)
def test_files_that_are_not_one_model_are_refused(tmp_path: Path, values: list[Values], words: str) -> None:
    with pytest.raises(ConfigError, match=rf"models\[m\]\.path: .*{words}") as caught:
        read_model(parts(tmp_path, *values), "m")
    assert caught.value.remedy


def test_a_damaged_file_is_refused_and_an_unknown_one_is_let_through(tmp_path: Path) -> None:
    whole = write(tmp_path / "m.gguf", LLAMA)
    whole.write_bytes(whole.read_bytes()[:-10])
    with pytest.raises(ConfigError, match=r"models\[m\]\.path: m\.gguf cannot be loaded: it is cut short") as caught:
        read_model([whole], "m")
    assert caught.value.remedy == "fetch it again, whole"
    new = tmp_path / "new.gguf"
    new.write_bytes(b"GGUF" + struct.pack("<IQQ", 4, 0, 0))
    assert "GGUF version 4" in read_model([new], "m").unread
    with pytest.raises(ConfigError, match="cannot be read"):
        read_model([tmp_path / "absent.gguf"], "m")


def test_what_goes_to_cards() -> None:
    table, output, layer = (Tensor(f"{name}.weight", "Q4_K", 10) for name in ("token_embd", "output", "blk.0.ffn_up"))
    assert Model(tensors=(table, layer)).on_cards == (table, layer)
    assert Model(tensors=(table, output, layer)).on_cards == (output, layer)
    assert Model(tensors=(table, Tensor("norm", "F32", 30))).share_of(K_QUANTS) == 0.25
    assert Model().share_of(K_QUANTS) == 0

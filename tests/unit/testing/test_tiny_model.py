"""The tiny models: equal by seed, of another content with another, and the same in both forms."""

from collections import Counter
from pathlib import Path

import pytest

from viiwork_core.testing.tiny_model import CONTEXT, WORDS, build_vocabulary, main, write_gguf, write_mlx

pytest.importorskip("numpy")


def content(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def test_the_same_seed_gives_the_same_gguf(tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    first, again = write_gguf(tmp_path / "a.gguf"), write_gguf(tmp_path / "deep" / "b.gguf")
    assert first.read_bytes() == again.read_bytes()
    assert first.stat().st_size < 3_000_000


def test_another_seed_gives_another_model_of_the_same_shape(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    one, two = write_gguf(tmp_path / "1.gguf"), write_gguf(tmp_path / "2.gguf", seed=2)
    assert one.read_bytes() != two.read_bytes()
    shapes = [[(tensor.name, *tensor.shape) for tensor in gguf.GGUFReader(path).tensors] for path in (one, two)]
    assert shapes[0] == shapes[1]


def test_the_same_seed_gives_the_same_mlx_folder(tmp_path: Path) -> None:
    pytest.importorskip("safetensors")
    first, again, other = write_mlx(tmp_path / "a"), write_mlx(tmp_path / "b"), write_mlx(tmp_path / "c", seed=2)
    assert content(first) == content(again)
    assert {name for name, bytes_ in content(other).items() if bytes_ != content(first)[name]} == {"model.safetensors"}


def test_both_forms_hold_the_same_embedding(tmp_path: Path) -> None:
    gguf, safetensors = pytest.importorskip("gguf"), pytest.importorskip("safetensors.numpy")
    ours = safetensors.load_file(write_mlx(tmp_path / "mlx", seed=3) / "model.safetensors")
    theirs = {tensor.name: tensor.data for tensor in gguf.GGUFReader(write_gguf(tmp_path / "g", seed=3)).tensors}
    assert (ours["model.embed_tokens.weight"] == theirs["token_embd.weight"]).all()
    assert not (ours["model.layers.0.self_attn.q_proj.weight"] == theirs["blk.0.attn_q.weight"]).all()


def test_each_word_is_a_token_with_and_without_its_space() -> None:
    tokens = build_vocabulary().tokens
    assert not [word for word in WORDS if word not in tokens or f"\u0120{word}" not in tokens]


def test_no_token_is_there_twice() -> None:
    assert not [token for token, times in Counter(build_vocabulary().tokens).items() if times > 1]


def test_each_merge_joins_two_tokens_into_a_third() -> None:
    vocabulary = build_vocabulary()
    known = set(vocabulary.tokens)
    assert not [pair for pair in vocabulary.merges if {*pair, "".join(pair)} - known]


def test_the_command_line_writes_where_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("safetensors")
    monkeypatch.setattr("sys.argv", ["tiny_model", "mlx", str(tmp_path / "out"), "--seed", "9"])
    main()
    assert f'"max_position_embeddings": {CONTEXT}' in (tmp_path / "out" / "config.json").read_text()

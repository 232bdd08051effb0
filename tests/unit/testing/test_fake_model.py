"""The fake model: the same words for the same prompt, and a cache that can be told from another."""

from pathlib import Path

import pytest

from viiwork_core.testing.fake_model import (
    BadCacheFile,
    Slot,
    append,
    next_token,
    prefill,
    prompt_ids,
    read_cache,
    render,
    token_id,
    tokenize,
    write_cache,
)


def written(prompt: str, words: int = 8, seed: int = 0) -> str:
    slot, text = Slot(0), ""
    prefill(slot, prompt_ids(prompt), seed)
    for _ in range(words):
        text += (word := next_token(slot))
        append(slot, token_id(word), seed)
    return text


def test_tokens_joined_are_the_text() -> None:
    text = "The old river, 12 boats.\n\n<|im_end|>  caf\u00e9 \u65e5\u672c"
    assert "".join(tokenize(text)) == text


def test_plain_words_are_one_token_each() -> None:
    assert tokenize("the old river") == ["the", " old", " river"]


def test_the_text_depends_on_the_first_word() -> None:
    assert written("one long story about the sea") != written("two long story about the sea")


def test_another_model_writes_another_text() -> None:
    assert written("the sea", seed=1) != written("the sea", seed=2)


def test_a_prompt_is_never_cached_whole() -> None:
    slot, ids = Slot(0), prompt_ids("the old river ran north")
    assert prefill(slot, ids, 0) == 0
    assert prefill(slot, ids, 0) == len(ids) - 1


@pytest.mark.parametrize("place", [0, 3, -1])
def test_a_wrong_row_shows_as_other_text(place: int) -> None:
    right, wrong, ids = Slot(0), Slot(1), prompt_ids("the old river ran north and then east")
    prefill(right, ids, 0)
    prefill(wrong, ids, 0)
    wrong.rows[place] = wrong.rows[place]._replace(state=wrong.rows[place].state ^ 1)
    longer = [*ids, token_id(" again")]
    assert prefill(wrong, longer, 0) == prefill(right, longer, 0) == len(ids)
    assert next_token(wrong) != next_token(right)


def test_messages_without_a_role_are_refused() -> None:
    with pytest.raises(ValueError, match="role"):
        render([{"content": "hello"}])


def test_text_parts_count_as_text() -> None:
    parts = [{"type": "text", "text": "a "}, {"type": "text", "text": "b"}]
    assert render([{"role": "user", "content": parts}]) == render([{"role": "user", "content": "a b"}])


def test_a_cache_file_holds_what_the_slot_holds(tmp_path: Path) -> None:
    slot = Slot(0)
    prefill(slot, prompt_ids("the old river ran north"), 7)
    assert write_cache(slot, tmp_path / "file") == (tmp_path / "file").stat().st_size
    assert read_cache(tmp_path / "file") == slot.rows


@pytest.mark.parametrize("keep", [0, 1, 63, 64, 70, -1])
def test_a_cut_file_is_refused(tmp_path: Path, keep: int) -> None:
    slot = Slot(0)
    prefill(slot, prompt_ids("the old river ran north"), 7)
    write_cache(slot, tmp_path / "file")
    (tmp_path / "file").write_bytes((tmp_path / "file").read_bytes()[:keep])
    with pytest.raises(BadCacheFile):
        read_cache(tmp_path / "file")

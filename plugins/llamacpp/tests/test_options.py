"""The llamacpp block."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from viiwork_llamacpp.options import FlashAttention, LlamaCppOptions, SplitMode


def test_an_empty_block_has_defaults() -> None:
    options = LlamaCppOptions.model_validate({})
    assert options.binary is None
    assert (options.threads, options.main_gpu, options.split_weights) == (0, 0, ())
    assert options.split_mode is SplitMode.LAYER
    assert options.flash_attention is FlashAttention.ON


@pytest.mark.parametrize(("value", "meant"), [(True, "on"), (False, "off"), ("on", "on"), ("auto", "auto")])
def test_a_bare_on_or_off_of_yaml_is_meant_as_the_word(value: object, meant: str) -> None:
    assert LlamaCppOptions.model_validate({"flash_attention": value}).flash_attention == meant


@pytest.mark.parametrize(
    ("block", "key"),
    [
        ({"binery": "x"}, "binery"),
        ({"binary": ""}, "binary"),
        ({"threads": -1}, "threads"),
        ({"split_mode": "column"}, "split_mode"),
        ({"split_weights": [1, 0]}, "split_weights"),
        ({"split_weights": [1, float("inf")]}, "split_weights"),
        ({"main_gpu": -1}, "main_gpu"),
        ({"flash_attention": "maybe"}, "flash_attention"),
    ],
)
def test_a_wrong_value_names_its_key(block: dict[str, object], key: str) -> None:
    with pytest.raises(ValidationError) as caught:
        LlamaCppOptions.model_validate(block)
    assert caught.value.errors()[0]["loc"][0] == key

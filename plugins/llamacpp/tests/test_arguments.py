"""Arguments of the operator that the core decides instead."""

from __future__ import annotations

from dataclasses import replace

import pytest

from viiwork_core import ConfigError, Context, Spec
from viiwork_llamacpp.arguments import REFUSED, REFUSED_VARIABLES
from viiwork_llamacpp.engine import LlamaCpp
from viiwork_llamacpp.options import LlamaCppOptions


def launched(context: Context, spec: Spec) -> tuple[str, ...]:
    return LlamaCpp(LlamaCppOptions(), context).launch(spec).argv


@pytest.mark.parametrize("flag", sorted(REFUSED))
def test_a_flag_that_is_not_the_operators(spec: Spec, context: Context, flag: str) -> None:
    with pytest.raises(ConfigError, match=r"models\[m\]\.args: ") as caught:
        launched(context, replace(spec, args=("--mlock", flag, "9")))
    assert f"args: {flag} is viiwork's" in caught.value.message
    assert caught.value.remedy == REFUSED[flag]


def test_other_spellings_are_the_same_flag(spec: Spec, context: Context) -> None:
    with pytest.raises(ConfigError, match="--slot-save-path"):
        launched(context, replace(spec, args=("--slot_save_path", "/x")))


@pytest.mark.parametrize("name", sorted(REFUSED_VARIABLES))
def test_a_variable_that_is_not_the_operators(spec: Spec, context: Context, name: str) -> None:
    with pytest.raises(ConfigError, match=rf"models\[m\]\.env: {name} is viiwork's") as caught:
        launched(context, replace(spec, env={name: "secret"}))
    assert "secret" not in caught.value.message + caught.value.remedy


def test_everything_else_is_the_operators(spec: Spec, context: Context) -> None:
    args = ("-c", "4096", "--swa-full", "--slots", "--metrics", "-fa", "off", "--lora", "/a")
    assert launched(context, replace(spec, args=args, env={"LLAMA_ARG_UBATCH": "64"}))[-len(args) :] == args

"""Options, the command line, and what is refused before a process is started."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import ValidationError
from viiwork_core import ConfigError, Context, Launch, Spec

from viiwork_vllm.engine import VllmEngine
from viiwork_vllm.model import TOKENIZERS
from viiwork_vllm.options import VllmOptions


def launch(context: Context, spec: Spec, **block: object) -> Launch:
    return VllmEngine(VllmOptions.model_validate(block), context).launch(spec)


def prepare(context: Context, spec: Spec, **block: object) -> None:
    asyncio.run(VllmEngine(VllmOptions.model_validate(block), context).prepare(spec))


def advice(context: Context, spec: Spec) -> Sequence[str]:
    return asyncio.run(VllmEngine(VllmOptions(), context).advice(spec))


@pytest.mark.parametrize(
    "block", [{"exe": ""}, {"gpu_memory_utilization": 0}, {"gpu_memory_utilization": 1.1}, {"dtype": "int4"}, {"ex": 1}]
)
def test_a_wrong_option_is_named(block: dict[str, object]) -> None:
    with pytest.raises(ValidationError, match=next(iter(block))):
        VllmOptions.model_validate(block)


def test_the_command_line_of_the_defaults(context: Context, spec: Spec) -> None:
    line = f"vllm serve {spec.path} --served-model-name tiny --host 127.0.0.1 --port 4001 --max-model-len 4096"
    line += " --max-num-seqs 2 --tensor-parallel-size 1 --dtype auto --enable-prefix-caching"
    line += " --enable-prompt-tokens-details --uvicorn-log-level warning"
    found = launch(context, spec)
    assert found.argv == tuple(line.split())
    assert found.env["VLLM_HOST_IP"] == spec.host
    assert found.env["VLLM_LOGGING_LEVEL"] == "WARNING"


def test_options_cards_and_the_operators_arguments(context: Context, spec: Spec) -> None:
    spec = replace(spec, gpus=(2, 3), args=("--max-num-batched-tokens", "4096", "--no-enable-prefix-caching"))
    argv = launch(context, spec, exe="/opt/vllm/bin/vllm", gpu_memory_utilization=0.45, dtype="half").argv
    assert argv[0] == "/opt/vllm/bin/vllm"
    assert argv[argv.index("--tensor-parallel-size") + 1] == "2"
    assert argv[argv.index("--dtype") + 1] == "half"
    assert argv[-5:-3] == ("--gpu-memory-utilization", "0.45")
    assert argv[-3:] == spec.args


@pytest.mark.parametrize(
    ("word", "remedy"),
    [
        ("--port=9000", "draws a port"),
        ("--api-key", "api.keys"),
        ("--max_model_len", "models[].context"),
        ("--max-num-seqs", "models[].parallel"),
        ("--served-model-name", "models[].name"),
        ("--data-parallel", "gpus_per_backend"),
        ("-dp", "gpus_per_backend"),
        ("--disable-log-stats", "/metrics"),
    ],
)
def test_what_the_core_decides_is_refused_in_args(context: Context, spec: Spec, word: str, remedy: str) -> None:
    with pytest.raises(ConfigError, match=r"models\[tiny\]\.args: -.* is viiwork's to decide") as raised:
        launch(context, replace(spec, args=("--seed", "1", word)))
    assert "9000" not in raised.value.message
    assert remedy in raised.value.remedy


def test_a_key_for_the_server_is_refused_in_env_and_not_repeated(context: Context, spec: Spec) -> None:
    with pytest.raises(ConfigError, match=r"models\[tiny\]\.env: VLLM_API_KEY") as raised:
        launch(context, replace(spec, env={"VLLM_API_KEY": "a secret"}))
    assert "a secret" not in raised.value.message


@pytest.mark.usefixtures("vllm")
def test_a_whole_folder_is_accepted(context: Context, spec: Spec) -> None:
    prepare(context, spec)


def test_a_missing_vllm_is_refused(context: Context, spec: Spec) -> None:
    with pytest.raises(ConfigError, match=r"models\[tiny\]\.vllm\.exe: there is no executable '/nowhere/vllm'"):
        prepare(context, spec, exe="/nowhere/vllm")


@pytest.mark.usefixtures("vllm")
@pytest.mark.parametrize("gone", ["config.json", "tokenizer.json", "model-00001-of-00002.safetensors"])
def test_an_incomplete_folder_is_refused(context: Context, spec: Spec, model: Path, gone: str) -> None:
    assert set(TOKENIZERS) & {file.name for file in model.iterdir()} == {"tokenizer.json"}
    (model / gone).unlink()
    with pytest.raises(ConfigError, match=r"models\[tiny\]\.path: .* has no ") as raised:
        prepare(context, spec)
    assert gone.rpartition(".")[2] in raised.value.message


@pytest.mark.usefixtures("vllm")
@pytest.mark.parametrize("path", [None, Path("/nowhere/model"), Path(__file__)])
def test_a_path_that_is_no_folder_is_refused(context: Context, spec: Spec, path: Path | None) -> None:
    with pytest.raises(ConfigError, match=r"models\[tiny\]\.path: "):
        prepare(context, replace(spec, path=path))


@pytest.mark.usefixtures("vllm")
@pytest.mark.parametrize("text", ["", "{", "[]", "\x00"])
def test_a_config_that_is_none_is_refused(context: Context, spec: Spec, model: Path, text: str) -> None:
    (model / "config.json").write_text(text)
    with pytest.raises(ConfigError, match=r"config\.json is not "):
        prepare(context, spec)


def test_a_model_that_fits_gets_no_advice(context: Context, spec: Spec) -> None:
    assert advice(context, replace(spec, gpus=(0, 1), context=8192)) == ()


def test_heads_and_context_that_do_not_fit_are_told(context: Context, spec: Spec, model: Path) -> None:
    heads, longest = advice(context, replace(spec, gpus=(0, 1, 2), context=9000))
    assert "32 attention heads" in heads
    assert "set gpus_per_backend" in heads
    assert "made for 8192 tokens, and context is 9000" in longest
    (model / "config.json").write_text('{"text_config": {"max_position_embeddings": 10000}}')
    assert advice(context, replace(spec, context=9000)) == ()
    (model / "config.json").write_text('{"max_position_embeddings": 10, "rope_scaling": {"rope_type": "yarn"}}')
    assert advice(context, spec) == ()

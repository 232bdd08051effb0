"""Options, the command line, and what is refused before a process is started."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import ValidationError

from viiwork_core import Address, CommandOutput, ConfigError, Context, EngineRefused, Spec
from viiwork_mlx.cache import MlxCache
from viiwork_mlx.engine import MlxEngine
from viiwork_mlx.options import MlxOptions


def complete(folder: Path) -> Path:
    for name in ("config.json", "model-00001-of-00002.safetensors", "tokenizer.json"):
        (folder / name).touch()
    return folder


def answering(context: Context, text: str, returncode: int = 0) -> Context:
    async def run(argv: Sequence[str]) -> CommandOutput:
        return CommandOutput(returncode, text)

    return replace(context, run_command=run)


HAS_ALL = 'a warning\n{"viiwork-mlx": "0.1.0", "mlx": "0.32.4", "mlx-lm": "0.32.2"}\n'


@contextmanager
def refusing(words: str) -> Iterator[None]:
    """A ConfigError whose reason and remedy, as they are shown together, hold `words`, and the remedy only once."""
    with pytest.raises(ConfigError) as caught:
        yield
    assert re.search(words, f"{caught.value.message}; {caught.value.remedy}")
    assert caught.value.remedy not in caught.value.message


def prepare(context: Context, spec: Spec, options: MlxOptions | None = None) -> None:
    asyncio.run(MlxEngine(options or MlxOptions(), context).prepare(spec))


@pytest.mark.parametrize("value", [1, 8_000_000_000, "8GB", "1.5 G", "700M", "123"])
def test_sizes_are_taken_as_mlx_lm_takes_them(value: int | str) -> None:
    assert MlxOptions.model_validate({"prompt_cache_bytes": value}).prompt_cache_bytes == value


@pytest.mark.parametrize(
    ("block", "key"),
    [
        ({"prompt_cache_bytes": "8 TB"}, "prompt_cache_bytes"),
        ({"prompt_cache_size": 0}, "prompt_cache_size"),
        ({"python": ""}, "python"),
        ({"adapter": "adapters/mine"}, "adapter.*absolute path"),
        ({"draft_model": "~/draft"}, "draft_model.*absolute path"),
        ({"pyhton": "python3"}, "pyhton"),
    ],
)
def test_a_wrong_option_is_named(block: dict[str, object], key: str) -> None:
    with pytest.raises(ValidationError, match=f"(?s){key}"):
        MlxOptions.model_validate(block)


def test_the_command_line_of_the_defaults(context: Context, spec: Spec) -> None:
    launch = MlxEngine(MlxOptions(), context).launch(spec)
    line = f"{sys.executable} -P -m viiwork_mlx.server --model {spec.path} --model-name tiny --host 127.0.0.1"
    line += " --port 4001 --parallel 2 --prompt-cache-size 10 --context 8192 --max-tokens 8192 --log-level WARNING"
    assert launch.argv == tuple(line.split())
    assert launch.env == {"HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(context.state_dir)}


def test_options_cache_folder_and_the_operators_arguments_come_last(context: Context, spec: Spec) -> None:
    options = MlxOptions(python="/opt/mlx/bin/python", prompt_cache_size=4, prompt_cache_bytes="2GB")
    spec = replace(spec, cache_dir=Path("/kv"), args=("--log-level", "DEBUG"))
    argv = MlxEngine(options, context).launch(spec).argv
    assert argv[0] == "/opt/mlx/bin/python"
    assert argv[-8:] == (
        *("--log-level", "WARNING", "--prompt-cache-bytes", "2GB", "--kv-dir", "/kv"),
        *("--log-level", "DEBUG"),
    )


@pytest.mark.parametrize("args", [("--port", "80"), ("--host=0.0.0.0",), ("--mod", "x"), ("--parallel", "9")])
def test_arguments_that_are_not_the_operators_are_refused(context: Context, spec: Spec, args: tuple[str, ...]) -> None:
    with refusing(r"model tiny: args: --\w+ is set by viiwork; leave it out"):
        MlxEngine(MlxOptions(), context).launch(replace(spec, args=args))


def test_other_arguments_that_begin_alike_are_passed_on(context: Context, spec: Spec) -> None:
    args = ("--prompt-concurrency", "2", "--kv-bits", "8")
    assert MlxEngine(MlxOptions(), context).launch(replace(spec, args=args)).argv[-4:] == args


def test_a_complete_folder_is_accepted(context: Context, spec: Spec, tmp_path: Path) -> None:
    complete(tmp_path)
    prepare(answering(context, HAS_ALL), spec)


@pytest.mark.parametrize(
    ("missing", "words"),
    [
        ("config.json", "has no config.json"),
        ("model-00001-of-00002.safetensors", r"has no weights \(model\*\.safetensors\)"),
        ("tokenizer.json", r"has no tokenizer \(tokenizer.json or"),
    ],
)
def test_an_incomplete_folder_is_refused(
    context: Context, spec: Spec, tmp_path: Path, missing: str, words: str
) -> None:
    (complete(tmp_path) / missing).unlink()
    with refusing(f"model tiny: path: .* {words}.*; set it to the complete folder"):
        prepare(context, spec)


def test_an_incomplete_adapter_or_draft_model_is_refused(context: Context, spec: Spec, tmp_path: Path) -> None:
    complete(tmp_path)
    extra = tmp_path / "extra"
    with refusing(r"model tiny: mlx\.adapter: .* is not a folder; set it to the folder of an ad"):
        prepare(context, spec, MlxOptions(adapter=extra))
    extra.mkdir()
    with refusing(r"mlx\.adapter: .* has no adapter_config\.json, adapters\.safetensors; set"):
        prepare(context, spec, MlxOptions(adapter=extra))
    with refusing(r"mlx\.draft_model: .* has no config\.json, weights .*, tokenizer .*; set"):
        prepare(context, spec, MlxOptions(draft_model=extra))


def test_adapter_and_draft_model_reach_the_command_line(context: Context, spec: Spec) -> None:
    options = MlxOptions(adapter=Path("/adapter"), draft_model=Path("/draft"))
    line = " ".join(MlxEngine(options, context).launch(spec).argv)
    assert line.endswith("--adapter-path /adapter --draft-model /draft")


@pytest.mark.parametrize("path", [None, Path("/nowhere/model"), Path(__file__)])
def test_a_path_that_is_no_folder_is_refused(context: Context, spec: Spec, path: Path | None) -> None:
    with refusing(r"model tiny: path: .*; set it to the folder of an MLX model"):
        prepare(context, replace(spec, path=path))


def test_a_python_without_mlx_lm_is_refused_with_the_pip_line(context: Context, spec: Spec, tmp_path: Path) -> None:
    complete(tmp_path)
    lacking = answering(context, '{"viiwork-mlx": "0.1.0", "mlx": "0.32.4", "mlx-lm": null}')
    with refusing(r"mlx\.python: py has no mlx-lm; with that Python, run: pip install .*mlx"):
        prepare(lacking, spec, MlxOptions(python="py"))
    with refusing("has no viiwork-mlx, mlx, mlx-lm"):
        prepare(answering(context, "Traceback", 1), spec)


def test_a_python_that_cannot_be_started_is_refused(context: Context, spec: Spec, tmp_path: Path) -> None:
    complete(tmp_path)
    with refusing(r"mlx\.python: /nowhere/python cannot be started"):
        prepare(context, spec, MlxOptions(python="/nowhere/python"))


def fingerprint(context: Context, spec: Spec, options: MlxOptions | None = None) -> dict[str, str]:
    return dict(asyncio.run(MlxCache(options or MlxOptions(), context).fingerprint(spec, Address("127.0.0.1", 9))))


def test_the_fingerprint_names_its_parts(context: Context, spec: Spec, tmp_path: Path) -> None:
    (complete(tmp_path) / "config.json").write_text("{}")
    found = fingerprint(answering(context, HAS_ALL), spec)
    assert len(found.pop("model")) == 64
    assert found == {
        "cache format": "viiwork-mlx-1",
        "mlx": "0.32.4",
        "mlx_lm": "0.32.2",
        "kv": "as the model",
        "adapter": "none",
        "draft model": "none",
    }


def test_the_fingerprint_knows_the_options(context: Context, spec: Spec, tmp_path: Path) -> None:
    (complete(tmp_path) / "config.json").write_text("{}")
    for name in ("adapter", "other", "draft"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "weights").write_text(name)
    options = MlxOptions(adapter=tmp_path / "adapter", draft_model=tmp_path / "draft")
    found = fingerprint(answering(context, HAS_ALL), spec, options)
    over = replace(spec, args=("--adapter-path", str(tmp_path / "other")))
    again = fingerprint(answering(context, HAS_ALL), over, options)
    assert len({found["adapter"], found["draft model"], again["adapter"]}) == 3
    assert again["draft model"] == found["draft model"] != "none"


def test_the_fingerprint_follows_the_operators_arguments(context: Context, spec: Spec, tmp_path: Path) -> None:
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "weights").write_text("a")
    args = ("--kv-bits=8", "--max-tokens", "9", "--adapter-path", str(tmp_path / "adapter"))
    found = fingerprint(answering(context, HAS_ALL), replace(spec, args=args))
    assert found["kv"] == "8 bits in groups of 64 from token 5000"
    assert len(found["adapter"]) == 64


def test_no_fingerprint_without_versions_or_with_wrong_arguments(context: Context, spec: Spec) -> None:
    with pytest.raises(EngineRefused, match="has no"):
        fingerprint(answering(context, "", 1), spec)
    with pytest.raises(EngineRefused, match="model tiny: args: argument --kv-bits"):
        fingerprint(answering(context, HAS_ALL), replace(spec, args=("--kv-bits", "many")))

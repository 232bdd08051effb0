"""What must be equal before a cache may move."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from viiwork_core import Address, CommandOutput, Context, EngineRefused, Spec
from viiwork_llamacpp.build import Build, parse_version
from viiwork_llamacpp.cache import LlamaCppCache
from viiwork_llamacpp.options import LlamaCppOptions


@pytest.mark.parametrize(
    ("text", "build", "label", "state"),
    [
        ("version: 10068 (0123abc)\nbuilt with GNU", Build(10068, "0123abc"), "b10068", "2"),
        ("version: 1 (571d0d5)", Build(10068, "571d0d5"), "b10068", "2"),
        ("version: 1 (3ce7da2)", Build(10092, "3ce7da2"), "b10092", "2"),
        ("version: 0.1.0-dev (build 1, commit 7e4c0a9)", Build(10434, "7e4c0a9"), "b10434", "2 packed"),
        ("version: 0.6.0-dev (build 11434, commit 0123abc)", Build(11434, "0123abc"), "b11434", "4 packed"),
        ("version: 9000 (0123abc)", Build(9000, "0123abc"), "b9000", "b9000"),
        ("version: 1 (0123abc)", Build(None, "0123abc"), "0123abc", "0123abc"),
        ("0.6.0-dev (build 0, commit unknown)", Build(), None, None),
        ("Illegal instruction", Build(), None, None),
    ],
)
def test_builds(text: str, build: Build, label: str | None, state: str | None) -> None:
    parsed = parse_version(text)
    assert (parsed, parsed.label, parsed.state_version) == (build, label, state)


def fingerprint(spec: Spec, context: Context, tmp_path: Path, version: str | None = "version: 10068 (0123abc)") -> dict:
    """The fingerprint of a program that says it is `version`; None: it cannot be run."""
    program = tmp_path / "llama-server"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)

    async def run_command(argv: object) -> CommandOutput:
        if version is None:
            raise EngineRefused("it does not start")
        return CommandOutput(0, version)

    cache = LlamaCppCache(LlamaCppOptions(binary=str(program)), replace(context, run_command=run_command))
    return dict(asyncio.run(cache.fingerprint(spec, Address("127.0.0.1", 9))))


def differing(one: dict[str, str], other: dict[str, str]) -> set[str]:
    assert one.keys() == other.keys()
    return {key for key in one if one[key] != other[key]}


@pytest.mark.parametrize(
    ("args", "part"),
    [
        (("-np", "4"), "streams"),
        (("-kvu",), "streams"),
        (("-fa", "off"), "flash_attention"),
        (("--flash-attn", "auto"), "flash_attention"),
        (("-ctk", "q8_0"), "cache_type_k"),
        (("--cache-type-v", "q4_0"), "cache_type_v"),
        (("--cache_type_v", "q4_0"), "cache_type_v"),
        (("--rope-freq-base", "5000"), "rope"),
        (("--yarn-orig-ctx", "4096"), "rope"),
        (("--override-kv", "llama.rope.freq_base=float:1"), "overrides"),
        (("--swa-full",), "swa_full"),
    ],
)
def test_an_argument_that_changes_the_cache(
    spec: Spec, context: Context, tmp_path: Path, args: tuple[str, ...], part: str
) -> None:
    plain = fingerprint(spec, context, tmp_path)
    assert differing(plain, fingerprint(replace(spec, args=args), context, tmp_path)) == {part}


@pytest.mark.parametrize(
    "args",
    [
        ("-c", "9999"),
        ("-b", "64", "-ub", "64"),
        ("-t", "1"),
        ("-fa", "1"),
        ("-ctk", "q8_0", "-ctk", "F16"),
        ("-kvu", "-no-kvu"),
        ("--jinja",),
    ],
)
def test_an_argument_that_does_not(spec: Spec, context: Context, tmp_path: Path, args: tuple[str, ...]) -> None:
    plain = fingerprint(spec, context, tmp_path)
    assert fingerprint(replace(spec, args=args), context, tmp_path) == plain


def test_context_and_place_do_not_matter(spec: Spec, context: Context, tmp_path: Path) -> None:
    moved = tmp_path / "elsewhere.gguf"
    moved.write_bytes(spec.path.read_bytes())
    other = replace(spec, context=1024, path=moved, port=1, gpus=(1,), cache_dir=tmp_path, model="other")
    assert fingerprint(other, context, tmp_path) == fingerprint(spec, context, tmp_path)


def test_other_weights_differ(spec: Spec, context: Context, tmp_path: Path) -> None:
    other = tmp_path / "other.gguf"
    other.write_bytes(b"GGUF2")
    plain = fingerprint(spec, context, tmp_path)
    assert differing(plain, fingerprint(replace(spec, path=other), context, tmp_path)) == {"model"}
    assert differing(plain, fingerprint(replace(spec, args=("-m", str(other))), context, tmp_path)) == {"model"}


def test_every_shard_counts(spec: Spec, context: Context, tmp_path: Path) -> None:
    shards = [tmp_path / f"big-{n:05}-of-00002.gguf" for n in (1, 2)]
    for shard in shards:
        shard.write_bytes(b"x")
    before = fingerprint(replace(spec, path=shards[0]), context, tmp_path)
    shards[1].write_bytes(b"y")
    assert differing(before, fingerprint(replace(spec, path=shards[0]), context, tmp_path)) == {"model"}


def test_adapters_count_by_their_bytes(spec: Spec, context: Context, tmp_path: Path) -> None:
    for name, data in [("one.gguf", b"a"), ("copy.gguf", b"a"), ("two.gguf", b"b")]:
        (tmp_path / name).write_bytes(data)

    def adapters(*args: str) -> str:
        return str(fingerprint(replace(spec, args=args), context, tmp_path)["adapters"])

    one, copy, two = (str(tmp_path / name) for name in ("one.gguf", "copy.gguf", "two.gguf"))
    assert adapters() == ""
    assert adapters("--lora", one) == adapters("--lora", copy) != adapters("--lora", two)
    assert adapters("--lora", f"{one},{two}") == adapters("--lora", one, "--lora", two)
    assert adapters("--lora-scaled", f"{one}:0.5") != adapters("--lora-scaled", f"{one}:0.6")
    assert adapters("--control-vector", one) != adapters("--lora", one)


def test_builds_that_read_each_others_files_are_equal(spec: Spec, context: Context, tmp_path: Path) -> None:
    b10068 = fingerprint(spec, context, tmp_path, "version: 10068 (a000000)")
    assert fingerprint(spec, context, tmp_path, "version: 10092 (b000000)") == b10068
    assert differing(b10068, fingerprint(spec, context, tmp_path, "version: 10434 (c000000)")) == {"state"}


def test_a_build_that_does_not_say_is_known_by_its_bytes(spec: Spec, context: Context, tmp_path: Path) -> None:
    before = fingerprint(spec, context, tmp_path, None)
    assert fingerprint(spec, context, tmp_path, "(build 0, commit unknown)") == before
    (tmp_path / "libllama.so").write_bytes(b"other code")
    assert differing(before, fingerprint(spec, context, tmp_path, None)) == {"state"}


def test_settings_in_the_environment_count(spec: Spec, context: Context, tmp_path: Path) -> None:
    """llama-server reads LLAMA_ARG_* where no argument says otherwise."""
    plain = fingerprint(spec, context, tmp_path)
    other = fingerprint(replace(spec, env={"LLAMA_ARG_CACHE_TYPE_K": "q8_0"}), context, tmp_path)
    assert differing(plain, other) == {"environment"}
    assert fingerprint(replace(spec, env={"GGML_VK_VISIBLE_DEVICES": "0"}), context, tmp_path) == plain

"""Which JSON is refused before a start, and with which key."""

from __future__ import annotations

import json
import os
import re
import struct
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from viiwork_core import ConfigError, Context, Spec
from viiwork_strata.config_file import LARGEST, read_config
from viiwork_strata.engine import StrataEngine
from viiwork_strata.options import StrataOptions
from viiwork_strata.program import unfit

from .conftest import OPTIONS

ARGS = ["--kv", "int8", "--max-context", "4096"]
FINE: dict[str, object] = {"model_name": "tiny", "args": ARGS}


def spec(path: Path | None, **changes: object) -> Spec:
    return Spec(**{"model": "tiny", "index": 0, "backends": 1, "path": path, "context": 4096, "parallel": 1, **changes})  # type: ignore[arg-type]  # a spec's own fields


def prepare(context: Context, wanted: Spec) -> None:
    async def scene() -> None:
        async with StrataEngine(OPTIONS, context) as engine:
            await engine.prepare(wanted)

    anyio.run(scene)


def written(folder: Path, config: object) -> Path:
    path = folder / "strata.json"
    path.write_text(json.dumps(config))
    return path


def refused(context: Context, wanted: Spec) -> ConfigError:
    with pytest.raises(ConfigError) as found:
        prepare(context, wanted)
    assert found.value.remedy
    return found.value


@pytest.mark.parametrize("more", [{}, {"aliases": None}, {"lazy_load": False, "idle_unload_s": 0, "api_key": ""}])
def test_what_agrees_is_taken(context: Context, tmp_path: Path, more: dict[str, object]) -> None:
    path = written(tmp_path, {**FINE, **more})
    prepare(context, spec(path))
    assert read_config(spec(path)).values["model_name"] == "tiny"


# The file


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "cannot be read"),
        (b"{", "is not JSON"),
        (b"\xff\xfe{\x00}\x00", "is not JSON"),
        (b"[" * 200_000, "is not JSON"),
        (b"[]", "is not a JSON object"),
        (b'"tiny"', "is not a JSON object"),
        (b"null", "is not a JSON object"),
        (b"", "is not JSON"),
        (b" " * (2 << 20), "has more than 1048576 bytes"),
    ],
)
def test_a_file_that_is_no_config_is_refused(
    context: Context, tmp_path: Path, content: bytes | None, words: str
) -> None:
    """Strata: "file missing/not regular/>1 MiB; not a JSON object"."""
    path = tmp_path / "strata.json"
    if content is not None:
        path.write_bytes(content)
    message = refused(context, spec(path)).message
    assert message.startswith(f"model tiny: path: {path} ")
    assert words in message


def test_a_folder_a_pipe_and_nothing_are_refused(context: Context, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "is not a regular file" in refused(context, spec(tmp_path / "pipe")).message
    assert "path: " in refused(context, spec(tmp_path)).message
    assert refused(context, spec(None)).message == "model tiny: path: is missing"


def test_a_file_of_the_largest_size_is_taken(context: Context, tmp_path: Path) -> None:
    path = tmp_path / "strata.json"
    path.write_bytes(json.dumps(FINE).encode().ljust(LARGEST))
    prepare(context, spec(path))
    assert path.stat().st_size == LARGEST


def test_a_byte_order_mark_does_not_matter(tmp_path: Path) -> None:
    """Strata: "Config JSON is read as utf-8-sig (BOM ok)"."""
    plain, marked = tmp_path / "plain.json", tmp_path / "marked.json"
    plain.write_text(json.dumps(FINE), "utf-8")
    marked.write_text(json.dumps(FINE), "utf-8-sig")
    assert read_config(spec(marked)).values == read_config(spec(plain)).values == FINE


# Its keys


@pytest.mark.parametrize(
    "names", [{"model_name": "tiny"}, {"aliases": ["x", "tiny", 7]}, {"model_name": "y", "aliases": "x, tiny"}]
)
def test_a_name_or_an_alias_is_enough(context: Context, tmp_path: Path, names: dict[str, object]) -> None:
    """Strata: "aliases (list or one comma string)"."""
    path = tmp_path / "strata.json"
    path.write_text(json.dumps({"args": ARGS, **names}), "utf-8-sig")
    prepare(context, spec(path))
    assert path.exists()


@pytest.mark.parametrize(
    ("config", "key", "words"),
    [
        ({}, "name", "serves model_name or aliases qwen3.8-flash-next, and not tiny"),
        ({"model_name": None, "aliases": ["tiny"]}, "model_name", "is no text"),
        ({"model_name": "other", "aliases": ["tinier"]}, "name", "aliases other, tinier, and not tiny"),
        ({"model_name": "other", "aliases": {"tiny": 1}}, "name", "aliases other, and not tiny"),
        ({"Model_Name": "tiny"}, "name", "qwen3.8-flash-next"),
        ({**FINE, "args": "--max-context 4096"}, "args", "is not a list of strings"),
        ({**FINE, "args": ["--max-context", 4096]}, "args", "is not a list of strings"),
        ({**FINE, "args": None}, "args", "is not a list of strings"),
        ({"model_name": "tiny"}, "context", "--max-context in .* is missing"),
        ({**FINE, "args": ["--max-context=4096"]}, "context", "is one argument with its value"),
        ({**FINE, "args": ["--max-context", "4096", "--max-context=4096"]}, "context", "is one argument"),
        ({**FINE, "args": ["--max-context", "4096"] * 2}, "context", "is there 2 times"),
        ({**FINE, "args": ["--max-context"]}, "context", "has no value"),
        ({**FINE, "args": ["--max-context", "--kv"]}, "context", "'--kv', which is no number"),
        ({**FINE, "args": ["--max-context", "4096.0"]}, "context", "no number"),
        ({**FINE, "args": ["--max-context", "-1"]}, "context", "no number"),
        ({**FINE, "args": ["--max-context", "9" * 5000]}, "context", "no number"),
        ({**FINE, "args": ["--max-context", "8192"]}, "context", "is 8192, and the model's context is 4096"),
        ({**FINE, "parallel": 2}, "parallel", 'is 1, and "parallel" is 2'),
        ({**FINE, "replicas": 2}, "replicas", "is 2"),
        ({**FINE, "replicas": True}, "replicas", "is True"),
        ({**FINE, "lazy_load": True}, "lazy_load", "is true"),
        ({**FINE, "idle_unload_s": 300}, "idle_unload_s", "is not 0"),
        ({**FINE, "idle_unload_s": "300"}, "idle_unload_s", "is not 0"),
        ({**FINE, "idle_unload_s": "soon"}, "idle_unload_s", "is not 0"),
        ({**FINE, "idle_unload_s": [1]}, "idle_unload_s", "is not 0"),
        ({**FINE, "api_key": "sesame"}, "api_key", "is set"),
        ({**FINE, "api_key": ["sesame"]}, "api_key", "is set"),
        ({**FINE, "exe": "/no/such/engine"}, "exe", "/no/such/engine does not exist"),
        ({**FINE, "exe": "/"}, "exe", "is not an executable file"),
    ],
)
def test_a_disagreement_is_refused_with_its_key(
    context: Context, tmp_path: Path, config: dict[str, object], key: str, words: str
) -> None:
    """Strata: "Refusals before start (each names the key)"."""
    path = written(tmp_path, config)
    found = refused(context, spec(path))
    assert found.message.startswith(f"model tiny: {key}: ")
    assert str(path) in found.message
    assert re.search(words, found.message)
    assert "sesame" not in found.message + found.remedy


@pytest.mark.parametrize("lazy", [1, "true", "yes", None])
def test_lazy_load_counts_only_when_it_is_true(context: Context, tmp_path: Path, lazy: object) -> None:
    """Strata: "lazy_load counts only when exactly `true`"."""
    path = written(tmp_path, {**FINE, "lazy_load": lazy})
    prepare(context, spec(path))
    assert path.exists()


@pytest.mark.parametrize(
    ("value", "slots"), [(None, 1), (1, 1), (0, 1), (True, 1), (2.0, 1), ("2", 1), (2, 2), (8, 8), (9, 8), (64, 8)]
)
def test_parallel_is_what_strata_makes_of_it(context: Context, tmp_path: Path, value: object, slots: int) -> None:
    """Strata: "whole number > 1 becomes engine `--batch N`; true/float/<=1 ignored; ... max 8 rows"."""
    path = written(tmp_path, {**FINE, "parallel": value})
    prepare(context, spec(path, parallel=slots))
    other = refused(context, spec(path, parallel=slots % 8 + 1))
    assert other.message.startswith(f"model tiny: parallel: is {slots % 8 + 1}, and ")


@pytest.mark.parametrize("batch", [["--batch", "4"], ["--slots", "4"]])
def test_parallel_is_not_looked_at_where_the_arguments_say_it(
    context: Context, tmp_path: Path, batch: list[str]
) -> None:
    """Strata: "unchecked when args have --batch/--slots"."""
    path = written(tmp_path, {**FINE, "args": [*batch, "--max-context", "4096"], "parallel": 2})
    prepare(context, spec(path, parallel=4))
    assert path.exists()


def test_more_than_eight_slots_are_refused(context: Context, tmp_path: Path) -> None:
    assert "8 at most" in refused(context, spec(written(tmp_path, {**FINE, "parallel": 9}), parallel=9)).message


@pytest.mark.parametrize(
    ("args", "flag"),
    [
        (("--config", "/other.json"), "--config"),
        (("--config=/other.json",), "--config"),
        (("--conf", "/other.json"), "--config"),
        (("--api-key", "sesame"), "--api-key"),
        (("--api-key=sesame",), "--api-key"),
        (("--api-k", "sesame"), "--api-key"),
        (("--open", "--lazy"), "--lazy"),
        (("--idle-unload", "60"), "--idle-unload"),
        (("--port", "8080"), "--port"),
        (("--host", "0.0.0.0"), "--host"),
    ],
)
def test_some_flags_are_not_the_operators(context: Context, tmp_path: Path, args: tuple[str, ...], flag: str) -> None:
    """Strata: "args must not hold --config or --api-key"."""
    found = refused(context, spec(written(tmp_path, FINE), args=args))
    assert found.message == f"model tiny: args: holds {flag}"
    assert "sesame" not in found.remedy


def test_other_flags_are(context: Context, tmp_path: Path) -> None:
    path = written(tmp_path, FINE)
    prepare(context, spec(path, args=("--min-free-vram-mib", "512", "--fit-max-tokens", "-", "--")))
    assert path.exists()


def test_a_key_in_the_environment_is_refused(context: Context, tmp_path: Path) -> None:
    """Strata: "--api-key (default $STRATA_API_KEY; comma list)"."""
    found = refused(context, spec(written(tmp_path, FINE), env={"STRATA_API_KEY": "sesame"}))
    assert found.message.startswith("model tiny: env: holds STRATA_API_KEY")
    assert "sesame" not in found.message + found.remedy


def test_a_folder_without_a_server_is_no_checkout(context: Context, tmp_path: Path) -> None:
    async def scene() -> None:
        async with StrataEngine(StrataOptions(dir=tmp_path), context) as engine:
            await engine.prepare(spec(written(tmp_path, FINE)))

    with pytest.raises(ConfigError, match=r"model tiny: strata\.dir: .* holds no serve/server\.py"):
        anyio.run(scene)


# What it advises


@pytest.mark.parametrize(
    ("config", "parallel", "named"),
    [
        (FINE, 1, []),
        ({**FINE, "parallel": 2}, 2, ["parallel"]),
        ({**FINE, "args": ["--prompt-cache", "0", *ARGS]}, 1, ["--prompt-cache 0"]),
        ({**FINE, "args": ["--prompt-cache", "6", *ARGS]}, 1, []),
        ({**FINE, "args": ["--layer-split", "auto", "--batch", "2", *ARGS]}, 1, ["--layer-split", "--batch"]),
    ],
)
def test_what_keeps_conversations_from_moving_is_advised(
    context: Context, tmp_path: Path, config: dict[str, object], parallel: int, named: list[str]
) -> None:
    """Strata: "Not supported (engine refuses): --layer-split, --peer-device, --batch/"parallel""."""
    shared = spec(written(tmp_path, config), parallel=parallel, cache_dir=tmp_path / "kv")

    async def advice(wanted: Spec) -> list[str]:
        async with StrataEngine(OPTIONS, context) as engine:
            return list(await engine.advice(wanted))

    said = anyio.run(advice, shared)
    assert [one.partition(" with ")[2].partition(";")[0] for one in said] == named
    assert anyio.run(advice, replace(shared, cache_dir=None)) == []


# The engine's binary


def elf(machine: int, order: str = "<") -> bytes:
    return b"\x7fELF\x02" + (b"\x01" if order == "<" else b"\x02") + bytes(10) + struct.pack(f"{order}HH", 2, machine)


@pytest.mark.parametrize(
    ("head", "words"),
    [
        (elf(62), ""),
        (elf(183), "another processor than x86_64"),
        (elf(62, ">"), ""),
        (elf(21, ">"), "another processor"),
        (b"#!/bin/sh\n", ""),
        (b"\x7fELF", ""),
        (b"", ""),
        (b"MZ\x90\x00", "another operating system"),
        (b"\xcf\xfa\xed\xfe\x0c\x00\x00\x01", "another operating system"),
    ],
)
def test_a_binary_for_another_machine_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, head: bytes, words: str
) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr("sys.platform", "linux")
    exe = tmp_path / "strata"
    exe.write_bytes(head)
    exe.chmod(0o755)
    found = unfit({"exe": "strata", "cwd": str(tmp_path)})
    assert words in found
    assert bool(found) == bool(words)


def test_a_binary_for_linux_is_none_for_a_mac(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("platform.machine", lambda: "arm64")
    monkeypatch.setattr("sys.platform", "darwin")
    exe = tmp_path / "strata"
    exe.write_bytes(elf(183))
    exe.chmod(0o755)
    assert "another operating system" in unfit({"exe": str(exe)})


@pytest.mark.parametrize("exe", [None, "", 7, "somewhere/strata"])
def test_a_binary_that_only_strata_finds_is_left_to_it(exe: object) -> None:
    assert unfit({"exe": exe}) == ""

"""A model whose restored caches llama-server does not use, or seldom, is not shared, and the operator is told why."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from viiwork_core import Address, CacheUnsupported, Context, EngineRefused, Saved, SessionRef, Spec
from viiwork_llamacpp.cache import LlamaCppCache
from viiwork_llamacpp.options import LlamaCppOptions

sys.path.insert(0, str(Path(__file__).parent))

from slot_files import Shape, made  # found by the line above

GEMMA = {"general.architecture": "gemma3", "gemma3.attention.sliding_window": 512}
JAMBA = {"general.architecture": "jamba", "jamba.ssm.state_size": 16}


def write(path: Path, values: dict[str, str | int]) -> Path:
    import gguf

    writer = gguf.GGUFWriter(path, str(values["general.architecture"]))
    for key, value in values.items():
        if isinstance(value, int):
            writer.add_uint32(key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def fingerprint(context: Context, spec: Spec) -> None:
    cache = LlamaCppCache(LlamaCppOptions(binary=sys.executable), context)
    asyncio.run(cache.fingerprint(spec, Address("127.0.0.1", 1)))


@pytest.mark.parametrize(
    ("values", "args", "why", "remedy"),
    [
        (GEMMA, (), "is not used", "--swa-full"),
        (JAMBA, (), "only where the prompt extends all of it", "remove kv_share"),
        (JAMBA, ("--swa-full",), "only where the prompt extends all of it", "remove kv_share"),
    ],
)
def test_it_says_no_before_anything_is_saved(
    context: Context,
    spec: Spec,
    tmp_path: Path,
    values: dict[str, str | int],
    args: tuple[str, ...],
    why: str,
    remedy: str,
) -> None:
    path = write(tmp_path / "other.gguf", values)
    with pytest.raises(EngineRefused, match=why) as refused:
        fingerprint(context, replace(spec, path=path, args=args))
    assert remedy in refused.value.remedy


@pytest.mark.parametrize(
    ("args", "env"), [(("--swa-full",), {}), (("--swa_full",), {}), ((), {"LLAMA_ARG_SWA_FULL": "1"})]
)
def test_a_sliding_window_that_is_kept_whole_may_move(
    context: Context, spec: Spec, tmp_path: Path, args: tuple[str, ...], env: dict[str, str]
) -> None:
    fingerprint(context, replace(spec, path=write(tmp_path / "other.gguf", GEMMA), args=args, env=env))


SLOT = {"id": 0, "n_ctx": 4096, "is_processing": False}
IDS = (101, 102, 103)


def saved(answers: Callable, context: Context, spec: Spec, folder: Path) -> Saved:
    """Save a conversation of a model with two caches, one of them for its sliding window."""
    folder.mkdir()
    (folder / "name").write_bytes(made(Shape(caches=2), IDS))
    replies = {
        "/slots": (200, json.dumps([SLOT]).encode()),
        "/slots/0?action=save": (200, json.dumps({"id_slot": 0, "n_saved": len(IDS)}).encode()),
    }

    async def run() -> Saved:
        options = LlamaCppOptions(binary=sys.executable)
        async with answers(replies) as (address, _), LlamaCppCache(options, context) as cache:
            return await cache.save(replace(spec, cache_dir=folder), address, SessionRef("s", 0), "name")

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("args", "env"), [(("--swa-full",), {}), (("--swa_full",), {}), ((), {"LLAMA_ARG_SWA_FULL": "1"})]
)
def test_a_sliding_window_that_is_kept_whole_is_saved(
    answers: Callable, context: Context, spec: Spec, tmp_path: Path, args: tuple[str, ...], env: dict[str, str]
) -> None:
    found = saved(answers, context, replace(spec, args=args, env=env), tmp_path / "caches")
    assert found.tokens == len(IDS)


def test_a_sliding_window_alone_is_not_saved(answers: Callable, context: Context, spec: Spec, tmp_path: Path) -> None:
    with pytest.raises(CacheUnsupported, match="sliding-window"):
        saved(answers, context, spec, tmp_path / "caches")

"""What is said before a load."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from viiwork_core import Accelerator, Context, Spec, Vendor
from viiwork_llamacpp.advice import advice
from viiwork_llamacpp.engine import LlamaCpp
from viiwork_llamacpp.gguf_file import Tensor
from viiwork_llamacpp.launch import Help, Prepared
from viiwork_llamacpp.model import Model
from viiwork_llamacpp.options import LlamaCppOptions

GIB = 1 << 30
PLAIN = Model("llama", trained_context=4096, tensors=(Tensor("blk.0.weight", "Q8_0", 4 * GIB),))


def said(spec: Spec, model: Model = PLAIN, *, available: int = 64 * GIB, **options: Any) -> str:
    prepared = Prepared(help=Help(cache_ram=True), available=available, model=model)
    return "\n".join(advice(spec, LlamaCppOptions.model_validate(options), prepared))


def on(spec: Spec, *cards: int | None, vendor: Vendor = Vendor.NVIDIA, target: str | None = None) -> Spec:
    """The spec on cards of so many MiB."""
    known = tuple(Accelerator(index, "Card", target, size) for index, size in enumerate(cards))
    return replace(spec, vendor=vendor, gpus=tuple(range(len(cards))), cards=known)


def test_nothing_is_said_where_nothing_is_wrong(spec: Spec) -> None:
    assert said(spec) == ""
    assert said(on(spec, 8192)) == ""
    assert said(on(spec, None)) == ""
    assert said(spec, Model()) == ""


@pytest.mark.parametrize(
    ("changes", "model", "words"),
    [
        ({"context": 4097}, {}, "context 4097 is over the 4096 tokens that the model was trained on"),
        ({"context": 4097, "args": ("--rope-scaling", "yarn")}, {}, ""),
        ({}, {"window": 512}, "a sliding window of 512 tokens: its caches cannot be shared"),
        ({"cache_dir": Path("/kv")}, {"window": 512}, "kv_share does not work with it"),
        ({"args": ("--swa-full",)}, {"window": 512}, ""),
        ({"env": {"LLAMA_ARG_SWA_FULL": "1"}}, {"window": 512}, ""),
        ({}, {"recurrent": True}, "is recurrent or hybrid"),
        ({"cache_dir": Path("/kv")}, {"recurrent": True}, "turn kv_share off for it"),
        ({}, {"architecture": "bert"}, "makes embeddings and no text; add --embeddings to args"),
        ({"args": ("--embeddings",)}, {"architecture": "bert"}, ""),
        ({}, {"unread": "m.gguf was not understood: it is of GGUF version 4"}, "not understood: it is of GGUF version"),
        ({"args": ("-c", "9000")}, {}, "so models[].context does not count"),
        ({"args": ("--kv_unified",)}, {}, "clears all idle slots' caches"),
    ],
)
def test_what_the_files_and_arguments_say(
    spec: Spec, changes: dict[str, Any], model: dict[str, Any], words: str
) -> None:
    found = said(replace(spec, **changes), replace(PLAIN, **model))
    assert words in found
    assert len(found.splitlines()) == bool(words)


def test_memory_that_is_too_small(spec: Spec) -> None:
    assert "the tensor blk.0.weight takes 4096 MiB, and the smallest card has 4000 MiB" in said(on(spec, 4000, 8000))
    for args in (("-ngl", "3"), ("-ot", "exps=CPU"), ("--n_cpu_moe", "9")):
        assert said(replace(on(spec, 4000), args=args)) == ""
    layers = tuple(Tensor(f"blk.{n}.weight", "Q8_0", GIB) for n in range(12))
    model = replace(PLAIN, tensors=layers)
    assert "6144 MiB of weights would go to card 0 (Card), which has 6000 MiB" in said(on(spec, 6000, 12000), model)
    assert said(on(spec, 6000, 12000), model, split_weights=[1, 2]) == ""
    assert said(on(spec, 6000, None), model) == ""
    apple = on(spec, 8192, vendor=Vendor.APPLE)
    assert "12288 MiB of weights would go to the machine, which has 8192 MiB" in said(apple, model)


def test_a_table_that_stays_in_ram_needs_no_card(spec: Spec) -> None:
    table, output = Tensor("token_embd.weight", "F16", 9 * GIB), Tensor("output.weight", "Q8_0", GIB)
    assert said(on(spec, 8192), replace(PLAIN, tensors=(table, output))) == ""
    assert "token_embd.weight takes 9216 MiB" in said(on(spec, 8192), replace(PLAIN, tensors=(table,)))


def test_gfx906_and_k_quants(spec: Spec) -> None:
    cards = on(spec, 32768, vendor=Vendor.AMD, target="gfx906")
    mixed = replace(PLAIN, tensors=(Tensor("a", "Q4_K", 3), Tensor("b", "F32", 1)))
    assert said(cards, mixed).startswith("75% of the weights are K-quants, for which gfx906 falls back")
    assert said(cards) == ""
    assert said(on(spec, 32768), mixed) == ""
    assert "only layer is known to be right" in said(replace(cards, args=("-sm", "row")))


def test_too_little_memory_for_the_prompt_cache(spec: Spec) -> None:
    assert "400 MiB of RAM are free" in said(spec, available=400 << 20)
    assert said(replace(spec, args=("-cram", "0")), available=400 << 20) == ""


def test_an_engine_that_has_prepared_has_advice(spec: Spec, context: Context, tmp_path: Path) -> None:
    program = tmp_path / "llama-server"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    wide = replace(spec, context=40000)

    async def scene() -> tuple[str, ...]:
        engine = LlamaCpp(LlamaCppOptions(binary=str(program)), context)
        assert await engine.advice(wide) == ()
        await engine.prepare(wide)
        return tuple(await engine.advice(wide))

    (only,) = asyncio.run(scene())
    assert "over the 32768 tokens" in only


def test_the_files_are_read_anew_only_when_they_changed(spec: Spec, context: Context, tmp_path: Path) -> None:
    assert spec.path is not None
    files = (spec.path,)

    async def scene() -> None:
        engine = LlamaCpp(LlamaCppOptions(), context)
        first = await engine._model(files, "m")
        assert await engine._model(files, "m") is first
        spec.path.write_bytes(spec.path.read_bytes() + bytes(64))
        assert await engine._model(files, "m") is not first

    asyncio.run(scene())

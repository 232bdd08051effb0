"""What the engine says before a start."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from viiwork_core import Accelerator, Context, Spec
from viiwork_mlx.engine import MlxEngine
from viiwork_mlx.folder import Model, read_model
from viiwork_mlx.options import MlxOptions

from .test_launch import answering, complete

LLAMA = {
    "max_position_embeddings": 32768,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_size": 4096,
}
GPU = '{"viiwork-mlx": "0.1.0", "mlx": "0.32.4", "mlx-lm": "0.32.2", "mlx-metal": "0.32.4"}'


def advice(context: Context, spec: Spec, found: str = GPU, **options: Any) -> list[str]:
    async def run() -> list[str]:
        engine = MlxEngine(MlxOptions(**options), answering(context, found))
        await engine.prepare(spec)
        return list(await engine.advice(spec))

    return asyncio.run(run())


@pytest.fixture
def model(spec: Spec, tmp_path: Path) -> Spec:
    (complete(tmp_path) / "config.json").write_text(json.dumps(LLAMA))
    return spec


def with_memory(spec: Spec, gib: int) -> Spec:
    return replace(spec, gpus=(0,), cards=(Accelerator(0, "Apple M4", memory_total=gib * 1024),))


def test_a_model_says_what_its_caches_take(model: Spec, tmp_path: Path) -> None:
    assert read_model(tmp_path) == Model(weights=0, context=32768, token_bytes=32 * 2 * 8 * 128 * 2)


@pytest.mark.parametrize("config", [{**LLAMA, "sliding_window": 4096}, {**LLAMA, "kv_lora_rank": 512}, {}, [], 5])
def test_a_model_of_another_kind_says_nothing_of_them(tmp_path: Path, config: object) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert read_model(tmp_path).token_bytes is None


def test_the_language_model_inside_another_is_found(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"text_config": LLAMA}))
    assert read_model(tmp_path).context == 32768


def test_nothing_to_say(context: Context, model: Spec) -> None:
    assert advice(context, with_memory(model, 64)) == []


def test_no_gpu_and_another_mlx_lm(context: Context, model: Spec) -> None:
    slow, untried = advice(context, model, '{"viiwork-mlx": "1", "mlx": "1", "mlx-lm": "0.40.1"}')[::-1]
    assert "works on the processor" in slow
    assert "pip install 'mlx-lm==0.32.*'" in untried


def test_a_context_over_the_models(context: Context, model: Spec) -> None:
    (said,) = advice(context, replace(model, context=65536))
    assert "65536 is over the 32768 tokens" in said


def test_one_at_a_time(context: Context, model: Spec, tmp_path: Path) -> None:
    (said,) = advice(context, model, draft_model=tmp_path)
    assert said.startswith("with a draft model mlx_lm answers one request at a time")
    (said,) = advice(context, replace(model, args=("--kv-bits", "8")))
    assert said.startswith("with --kv-bits in args")
    assert advice(context, replace(model, parallel=1), draft_model=tmp_path) == []


def test_fewer_conversations_than_slots(context: Context, model: Spec) -> None:
    (said,) = advice(context, model, prompt_cache_size=1)
    assert "mlx.prompt_cache_size 1" in said


def test_memory(context: Context, model: Spec, tmp_path: Path) -> None:
    (said,) = advice(context, replace(with_memory(model, 8), context=32768))
    assert said.startswith("2 requests of 32768 tokens may take 8.6 GB, and 6.4 GB are left")
    (said,) = advice(context, with_memory(model, 8), prompt_cache_bytes="7.5GB")
    assert said.startswith("mlx.prompt_cache_bytes is 7.5 GB, and 6.4 GB are left")
    with (tmp_path / "model-00001-of-00002.safetensors").open("wb") as file:
        file.truncate(7 << 30)  # takes no room on the disk
    (said,) = advice(context, with_memory(model, 8))
    assert "sudo sysctl iogpu.wired_limit_mb" in said

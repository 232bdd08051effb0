"""Both kits over Strata's double."""

import asyncio
import sys
from pathlib import Path

import pytest

from viiwork_core.contracts.engine import Spec
from viiwork_core.testing.cache_kit import CacheCase, check_cache
from viiwork_core.testing.engine_kit import EngineCase, check_engine, kit_context

pytest.importorskip("viiwork_strata", reason="the strata plugin is not installed")

from viiwork_strata.cache import StrataCache  # after the skip
from viiwork_strata.engine import StrataEngine
from viiwork_strata.options import StrataOptions
from viiwork_strata.testing import CHECKOUT, write_config

OPTIONS = StrataOptions.model_validate({"dir": CHECKOUT, "python": sys.executable, "warmup": 0})


def config(folder: Path, seed: str) -> Path:
    folder.mkdir()
    return write_config(folder, "tiny", seed=seed)


@pytest.fixture
def spec(tmp_path: Path) -> Spec:
    return Spec("tiny", 0, 1, config(tmp_path / "one", "one"), context=4096, parallel=1, gpus=(0,))


def test_the_engine_keeps_the_contract(spec: Spec, tmp_path: Path) -> None:
    assert asyncio.run(check_engine(EngineCase(StrataEngine, OPTIONS, spec, kit_context(tmp_path)))) == []


def test_the_cache_transfer_keeps_the_contract(spec: Spec, tmp_path: Path) -> None:
    other, caches = config(tmp_path / "two", "two"), tmp_path / "caches"
    caches.mkdir()
    case = CacheCase(StrataEngine, StrataCache, OPTIONS, spec, other, caches, kit_context(tmp_path))
    assert asyncio.run(check_cache(case)) == []

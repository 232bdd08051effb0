"""Both kits over Strata's double, with the cases of `viiwork plugin check`."""

import asyncio
from pathlib import Path

import pytest

from viiwork_core.testing.cache_kit import CacheCase, check_cache
from viiwork_core.testing.engine_kit import EngineCase, check_engine

pytest.importorskip("viiwork_strata", reason="the strata plugin is not installed")

from viiwork_strata.testing.kit import cases  # after the skip

pytestmark = pytest.mark.slow


def test_the_engine_keeps_the_contract(tmp_path: Path) -> None:
    (case,) = [one for one in cases(tmp_path) if isinstance(one, EngineCase)]
    assert asyncio.run(check_engine(case)) == []


def test_the_cache_transfer_keeps_the_contract(tmp_path: Path) -> None:
    (case,) = [one for one in cases(tmp_path) if isinstance(one, CacheCase)]
    assert asyncio.run(check_cache(case)) == []

"""Each clause of the engine contract is a test."""

from __future__ import annotations

import pytest
from viiwork_core import Context, Spec
from viiwork_core.testing.engine_kit import EngineCase
from viiwork_core.testing.pytest_kits import EngineKit

from viiwork_vllm.engine import VllmEngine
from viiwork_vllm.options import VllmOptions


@pytest.mark.usefixtures("vllm")
class TestVllm(EngineKit):
    @pytest.fixture
    def case(self, spec: Spec, context: Context) -> EngineCase:
        return EngineCase(VllmEngine, VllmOptions(), spec, context, settle_within=20.0)

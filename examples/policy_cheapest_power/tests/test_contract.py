"""Each clause of the contract is a test."""

from __future__ import annotations

from pathlib import Path

import pytest
from viiwork_core.testing.policy_kit import PolicyCase
from viiwork_core.testing.pytest_kits import PolicyKit

from viiwork_cheapest_power.kit import cases


class TestCheapestPower(PolicyKit):
    @pytest.fixture
    def case(self, tmp_path: Path) -> PolicyCase:
        (only,) = cases(tmp_path)
        return only

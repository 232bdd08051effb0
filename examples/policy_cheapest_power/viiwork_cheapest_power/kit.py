"""What `viiwork plugin check` and the tests try the policy with."""

from __future__ import annotations

from pathlib import Path

from viiwork_core.testing.policy_kit import PolicyCase

from viiwork_cheapest_power.policy import CheapestPower, CheapestPowerOptions


def cases(folder: Path) -> list[PolicyCase]:
    """With figures for some of the kit's own hosts. A policy needs no folder."""
    return [PolicyCase(CheapestPower, CheapestPowerOptions(watts={"attic": 180, "cellar": 320}))]

"""The routing policy cheapest_power for viiwork."""

from __future__ import annotations

from viiwork_core import Policy, hookimpl

from viiwork_cheapest_power.policy import CheapestPower

VIIWORK_API = (1, 1)
VIIWORK_KIT = "viiwork_cheapest_power.kit:cases"


@hookimpl
def viiwork_register_policy() -> type[Policy]:
    return CheapestPower

"""How much memory past conversations may take where the operator does not say."""

from __future__ import annotations

from collections.abc import Mapping

WORKING_SET = "max_recommended_working_set_size"
"""Of mlx's device_info: bytes that Metal recommends to use at most. Absent on a CPU."""

SHARE = 0.9
"""Of that; the rest is for what a step computes. Chosen, not measured."""


def room(device: Mapping[str, object], active: int) -> int | None:
    """Bytes left for caches beside `active`, the memory in use once the model is loaded; None: nobody knows.

    On a Mac that memory is wired: macOS cannot take it back, and without a bound long conversations have brought whole
    machines down.
    """
    most = device.get(WORKING_SET)
    if not isinstance(most, int) or most <= 0:
        return None
    return max(int(most * SHARE) - active, 1)

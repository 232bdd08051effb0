"""One GPU, and what can be asked for all of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from viiwork_core.contracts.engine import Vendor

POLL = 5.0
"""Seconds between two readings that cost next to nothing."""
TOOL_POLL = 30.0
"""The same where each reading starts a program, which may take a second of a core and wake a card."""

Users = Mapping[int, frozenset[int]]
"""Process ids, and the host indices of the cards that each is on."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU at one moment. None: not known, which is not zero."""

    index: int
    """The host index that models[].gpus uses: NVIDIA's in PCI order, AMD's in the order of the ROCm runtime."""

    vendor: Vendor
    uuid: str | None = None
    """As the vendor's runtime takes it in place of an index: GPU-..."""

    name: str | None = None
    target: str | None = None
    """What code is built for: gfx906. AMD only."""

    pci: str | None = None
    """0000:03:00.0, in lower case. AMD only."""

    memory_total: int | None = None
    """MiB. Of a chip that shares its memory with the processor: all of it."""

    memory_used: int | None = None
    """MiB."""

    utilisation: float | None = None
    """0 to 100."""

    power: float | None = None
    """Watts."""


class Source(Protocol):
    """Where the cards of one vendor are read."""

    @property
    def interval(self) -> float:
        """Seconds until the next reading is worth its cost."""
        ...

    async def read(self) -> tuple[Gpu, ...] | None:
        """The cards now, by index; None: it cannot be known now. Ends within a minute, and never raises."""
        ...

    async def users(self) -> Users | None:
        """Who computes on which card; None: it cannot be known. Ends within a minute, and never raises."""
        ...


def number(text: str | None) -> float | None:
    """A figure of a tool's answer; None where it says N/A, [Not Supported] or the like."""
    try:
        value = float((text or "").strip())
    except ValueError:
        return None
    return value if 0 <= value < float("inf") else None


def whole(text: str | None) -> int | None:
    """A whole number of a tool's answer, digits only; None for anything else."""
    digits = (text or "").strip()
    return int(digits) if digits.isascii() and digits.isdigit() else None

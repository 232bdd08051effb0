"""The inventory: whose cards this machine has, and their last reading."""

from __future__ import annotations

import asyncio
import platform
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import anyio
import structlog

from viiwork_core.clock import Clock
from viiwork_core.contracts.context import RunCommand
from viiwork_core.contracts.engine import Vendor
from viiwork_core.engines.gpus import amd, nvidia
from viiwork_core.engines.gpus.answers import said
from viiwork_core.engines.gpus.apple import Apple
from viiwork_core.engines.gpus.gpu import POLL, Gpu, Source, Users

_log = structlog.get_logger("viiwork.engines")

AUTO = "auto"
_ROOT = Path("/")
_GOOD_FOR = 3
"""Readings that may be missed before the figures of the last one are too old to tell."""
_LONGEST_WAIT = 600.0
_SETTLED_WITHIN = 15.0


async def detect(choice: str, run: RunCommand, *, root: Path = _ROOT) -> Vendor:
    """Whose cards are here: `choice`, unless that is "auto". Never raises; takes under a minute when every tool hangs.

    The device files come before the tools. A container that was handed a card often has none of the tools, and a tool
    that hangs must not leave every engine without its pin.
    """
    if choice != AUTO:
        return Vendor(choice)
    if _any(root, "dev/nvidia[0-9]*") or nvidia.lists_a_card(await said(run, nvidia.TOOL, "-L") or ""):
        return Vendor.NVIDIA
    if _any(root, "dev/kfd") and amd.read_nodes(root):
        return Vendor.AMD
    if "ROCM-SMI" in (await said(run, amd.tool(), "--version") or ""):
        return Vendor.AMD
    apple = (sys.platform, platform.machine()) == ("darwin", "arm64")
    return Vendor.APPLE if apple else Vendor.NONE


def _any(root: Path, pattern: str) -> bool:
    return any(True for _ in root.glob(pattern))


@dataclass(frozen=True, slots=True)
class _Reading:
    gpus: tuple[Gpu, ...]
    until: float
    """Monotonic time to which the figures may be told."""


class Inventory:
    """The cards of one vendor. `run` reads on the control loop; `gpus` may be called from any thread."""

    def __init__(self, vendor: Vendor, run: RunCommand, *, clock: Clock, root: Path = _ROOT) -> None:
        self.vendor = vendor
        self._clock = clock
        self._source = _source(vendor, run, root)
        self._reading: _Reading | None = None
        self._looked = asyncio.Event()

    def gpus(self) -> tuple[Gpu, ...] | None:
        """The cards as they were read last, by index; None: not known (yet).

        Figures that are too old are left out: a reading that outlives its card looks like a card at work.
        """
        reading = self._reading
        if self._source is None:
            return ()
        if reading is None or self._clock.monotonic() <= reading.until:
            return reading.gpus if reading else None
        return tuple(replace(gpu, memory_used=None, utilisation=None, power=None) for gpu in reading.gpus)

    async def users(self) -> Users | None:
        """Which processes compute on which cards; None: not known. On the control loop."""
        return None if self._source is None else await self._source.users()

    async def settled(self) -> None:
        """Wait until `run` has looked once, whatever it found; 15 s at most, since tools can hang."""
        with anyio.move_on_after(_SETTLED_WITHIN):
            await self._looked.wait()

    async def look(self) -> None:
        """Read once, now."""
        if self._source is not None:
            await self._read(self._source)

    async def run(self) -> None:
        """Read every few seconds until cancelled. A source that gives nothing is asked less and less often."""
        wait = 0.0
        if self._source is None:
            self._looked.set()
        while self._source is not None:
            found = await self._read(self._source)
            self._looked.set()
            wait = self._source.interval if found else min(max(2 * wait, POLL), _LONGEST_WAIT)
            await anyio.sleep(wait)

    async def _read(self, source: Source) -> bool:
        gpus = await source.read()
        if gpus is None:
            return False
        before = _identities(self._reading.gpus if self._reading else ())
        self._reading = _Reading(gpus, self._clock.monotonic() + _GOOD_FOR * source.interval)
        if _identities(gpus) != before:
            _log.info("gpus", vendor=self.vendor.value, cards=[f"{gpu.index} {gpu.name or '?'}" for gpu in gpus])
        return True


def _source(vendor: Vendor, run: RunCommand, root: Path) -> Source | None:
    if vendor is Vendor.NVIDIA:
        return nvidia.Nvidia(run)
    if vendor is Vendor.AMD:
        return amd.Amd(run, root)
    return Apple(run) if vendor is Vendor.APPLE else None


def _identities(gpus: tuple[Gpu, ...]) -> set[tuple[int, str | None, str | None]]:
    return {(gpu.index, gpu.uuid, gpu.name) for gpu in gpus}

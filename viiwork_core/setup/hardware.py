"""The hardware: what of this machine models can live on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import psutil

from viiwork_core.clock import SystemClock
from viiwork_core.contracts.engine import Vendor
from viiwork_core.engines.commands import Commands
from viiwork_core.engines.gpus.answers import said
from viiwork_core.engines.gpus.gpu import Gpu, whole
from viiwork_core.engines.gpus.inventory import AUTO, Inventory, detect

GIB: Final = 1 << 30
MIB: Final = 1 << 20

KEPT: Final = 4 * GIB
KEPT_SHARE: Final = 0.15
"""Of memory that models share with everything else: the larger of the two stays free. An allowance for the system and
what people run beside it, not a measurement."""

SMALL_MAC: Final = 36 * GIB
"""Up to this size macOS lets the GPU wire two thirds of the memory, above it three quarters: so Metal's
recommendedMaxWorkingSetSize is reported (96 of 128 GB, 48 of 64 GB, 24 of 36 GB)."""


@dataclass(frozen=True, slots=True)
class Hardware:
    """Cards, memory and processors."""

    vendor: Vendor
    cards: tuple[Gpu, ...]
    """By index; empty: there are none, or they could not be read."""

    memory: int
    """Bytes of RAM."""

    cpus: int
    wired_limit: int | None = None
    """Bytes that a Mac's owner lets the GPU have; None: what macOS does by itself."""

    @property
    def has_cards(self) -> bool:
        """Whether models lie in memory of cards' own, each card with one model."""
        return self.vendor in {Vendor.NVIDIA, Vendor.AMD} and bool(self.cards)

    @property
    def shared(self) -> int:
        """Bytes of memory that models may take together where they have no cards of their own: RAM, or what Metal may
        use of it, without what is kept free."""
        room = self.memory if self.vendor is not Vendor.APPLE else self._metal()
        return max(0, room - max(KEPT, int(room * KEPT_SHARE)))

    def _metal(self) -> int:
        if self.wired_limit:
            return min(self.wired_limit, self.memory)
        return self.memory * 2 // 3 if self.memory <= SMALL_MAC else self.memory * 3 // 4

    def lines(self) -> list[str]:
        """For people."""
        found = [f"{self.memory / GIB:.0f} GiB of memory, {self.cpus} processors"]
        if self.vendor is Vendor.NONE:
            return [*found, "no GPU: models run on the processor"]
        if not self.cards:
            return [*found, f"{self.vendor} cards, which could not be read: see that the driver's tool answers"]
        if self.vendor is Vendor.APPLE:
            return [*found, f"{self.cards[0].name or 'Apple GPU'}, which may use {self._metal() / GIB:.0f} GiB of it"]
        return [*found, *(f"GPU {card.index}: {card_text(card)}" for card in self.cards)]


def card_text(card: Gpu) -> str:
    """Name and memory."""
    memory = "" if card.memory_total is None else f", {card.memory_total / 1024:.0f} GiB"
    return f"{card.name or card.target or 'unnamed'}{memory}"


async def look(vendor: str = AUTO) -> Hardware:
    """Ask the machine. `vendor`: as in gpu.vendor. Under a minute even when every tool hangs."""
    run = Commands("init").run
    inventory = Inventory(await detect(vendor, run), run, clock=SystemClock())
    await inventory.look()
    limit = None
    if inventory.vendor is Vendor.APPLE:
        limit = whole((await said(run, "sysctl", "-n", "iogpu.wired_limit_mb") or "").strip())
    return Hardware(
        inventory.vendor,
        tuple(inventory.gpus() or ()),
        psutil.virtual_memory().total,
        psutil.cpu_count() or 1,
        limit * MIB if limit else None,
    )

"""What a launch must know about this machine, and whether its process ends up on the cards it was given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

import anyio
import anyio.to_thread
import structlog

from viiwork_core.contracts.engine import Accelerator, Spec, Vendor
from viiwork_core.engines.environment import GPU_PINS
from viiwork_core.engines.gpus.gpu import Gpu, Users
from viiwork_core.engines.gpus.whereabouts import Whereabouts, cards_in_use, process_tree, whereabouts

_log = structlog.get_logger("viiwork.engines")

_LOOK_FOR = 60.0
"""Seconds after the start in which a process may still turn up on a card."""
_LOOK_EVERY = 5.0
_TELLING = frozenset({Vendor.NVIDIA, Vendor.AMD})
"""Vendors whose drivers tell which process is on which card."""


class Cards(Protocol):
    """The cards of this machine."""

    async def settled(self) -> None:
        """Wait until they were looked for once; some seconds at most."""
        ...

    def gpus(self) -> tuple[Gpu, ...] | None: ...

    async def users(self) -> Users | None: ...


def _one() -> int:
    return 1


class Surroundings:
    """The surroundings of all backends of a node. On the control loop."""

    def __init__(self, cards: Cards | None = None, backends: Callable[[], int] = _one) -> None:
        self._cards = cards
        self._backends = backends

    async def of(self, spec: Spec) -> Spec:
        """The spec with what is known now."""
        if self._cards is None:
            return with_surroundings(spec, None, self._backends())
        if spec.gpus:
            await self._cards.settled()
        return with_surroundings(spec, self._cards.gpus(), self._backends())

    async def misplaced(self, spec: Spec, leader: int) -> str:
        """Look for the process `leader` and all it started on the cards, for a minute at most.

        Returns why it must not stay: it is on a card that is not its own, and nobody asked for that. Empty: it may
        stay, also when nobody can tell.
        """
        if self._cards is None or spec.vendor not in _TELLING:
            return ""
        with anyio.move_on_after(_LOOK_FOR):
            while True:
                users = await self._cards.users()
                tree = await anyio.to_thread.run_sync(process_tree, leader)
                found = whereabouts(spec.gpus, tree, users)
                if found is not Whereabouts.UNKNOWN:
                    return _verdict(spec, found, cards_in_use(tree, users or {}))
                await anyio.sleep(_LOOK_EVERY)
        return ""


def with_surroundings(spec: Spec, gpus: tuple[Gpu, ...] | None, backends: int) -> Spec:
    """The spec with the cards as they were read, and with how many backends the node has."""
    known = {gpu.index: Accelerator(gpu.index, gpu.name, gpu.target, gpu.memory_total) for gpu in gpus or ()}
    cards = tuple(known.get(index, Accelerator(index)) for index in spec.gpus) if known else ()
    return replace(spec, cards=cards, node_backends=backends)


def _verdict(spec: Spec, found: Whereabouts, on: frozenset[int]) -> str:
    if found is Whereabouts.RIGHT:
        return ""
    backend, own = f"{spec.model}/{spec.index}", ", ".join(map(str, spec.gpus)) or "none"
    cards = ", ".join(map(str, sorted(on)))
    if found is Whereabouts.FEWER:
        _log.warning("a backend leaves some of its cards idle", backend=backend, gpus=own, found_on=cards)
        return ""
    if pins := sorted(GPU_PINS & spec.env.keys()):
        _log.warning("a backend is on other cards", backend=backend, gpus=own, found_on=cards, as_set_by=pins)
        return ""
    return (
        f"it computes on card {cards}, and its own are {own}; "
        "look for what chooses cards in models[].args, and whether gpu.vendor is right"
    )

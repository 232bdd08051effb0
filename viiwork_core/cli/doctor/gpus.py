"""GPUs and pins: the cards that are here, those that are configured, and those that backends are on."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from viiwork_core.cli.doctor.situation import Situation, ok, problem, warning
from viiwork_core.clock import SystemClock
from viiwork_core.config.model import ModelConfig
from viiwork_core.config.schema import Config
from viiwork_core.contracts.doctor import Finding
from viiwork_core.contracts.engine import Vendor
from viiwork_core.engines.commands import Commands
from viiwork_core.engines.environment import GPU_PINS
from viiwork_core.engines.gpus.gpu import Gpu, Users
from viiwork_core.engines.gpus.inventory import AUTO, Inventory, detect
from viiwork_core.engines.gpus.whereabouts import Whereabouts, cards_in_use, process_tree, whereabouts


async def gpus(situation: Situation) -> Sequence[Finding]:
    """What the vendors' tools say, against what is written."""
    machine = situation.machine
    if machine is None:
        return []
    run = Commands("doctor").run
    vendor = await detect(machine.config.gpu.vendor, run)
    cards = Inventory(vendor, run, clock=SystemClock())
    await cards.look()
    found = list(compared(machine.config, vendor, cards.gpus()))
    if situation.running is not None and vendor in {Vendor.NVIDIA, Vendor.AMD}:
        users, models = await cards.users(), situation.running.status["models"]
        found += await asyncio.to_thread(lambda: list(_placed(models, users)))
    return found


def compared(config: Config, vendor: Vendor, cards: tuple[Gpu, ...] | None) -> Iterator[Finding]:
    """The configured cards against those that are here; None: they could not be read."""
    pinned = [model for model in config.models if model.gpus]
    if cards:
        yield ok(f"{len(cards)} {vendor} card{'' if len(cards) == 1 else 's'}: {', '.join(map(_card, cards))}")
    elif pinned and vendor is Vendor.NONE:
        names = ", ".join(model.name for model in pinned)
        remedy = "install the driver and its tool (nvidia-smi, rocm-smi), or remove gpus"
        yield problem(f"no GPU is found here, and {names} is to run on some", _about_vendor(config, remedy))
    elif cards is None or pinned:
        remedy = "see that the driver's tool answers (nvidia-smi, rocm-smi)"
        yield warning(f"the {vendor} cards could not be read", _about_vendor(config, remedy))
    else:
        yield ok("no GPU is here, and none is asked for")
    known = {card.index for card in cards or ()}
    for model in pinned:
        yield from _pins(model, known)


def _card(card: Gpu) -> str:
    memory = f", {card.memory_total} MiB" if card.memory_total is not None else ""
    return f"{card.index} {card.name or card.target or 'unnamed'}{memory}"


def _about_vendor(config: Config, remedy: str) -> str:
    return remedy if config.gpu.vendor == AUTO else f"{remedy}; gpu.vendor says {config.gpu.vendor}: auto looks for all"


def _pins(model: ModelConfig, known: set[int]) -> Iterator[Finding]:
    missing = [str(index) for index in model.gpus if index not in known]
    if known and missing:
        here = ", ".join(map(str, sorted(known)))
        what = f"{model.name} is to run on GPU {', '.join(missing)}, which is not here"
        yield problem(what, f"correct models[{model.name}].gpus; here are {here}")
    elif known:
        yield ok(f"{model.name} is pinned to GPU {', '.join(map(str, model.gpus))}")
    if own := sorted(GPU_PINS & model.env.keys()):
        what = f"{model.name}: {', '.join(own)} in env wins over the pin that gpus makes"
        yield warning(what, f"remove it from models[{model.name}].env, unless it says which cards on purpose")


def _placed(models: Sequence[Mapping[str, Any]], users: Users | None) -> Iterator[Finding]:
    """Where the processes of healthy backends are found."""
    backends = [one for model in models for one in model["backends"] if one.get("gpus") and one.get("pid")]
    for backend in backends:
        tree = process_tree(int(backend["pid"]))
        where, own = whereabouts(backend["gpus"], tree, users), ", ".join(map(str, backend["gpus"]))
        on = ", ".join(map(str, sorted(cards_in_use(tree, users or {}))))
        yield _place(str(backend["id"]), own, on, where)


def _place(backend: str, own: str, on: str, where: Whereabouts) -> Finding:
    if where is Whereabouts.WRONG:
        what = f"{backend} computes on GPU {on}, and its own are {own}"
        return problem(what, "look for what chooses cards in models[].args and env")
    if where is Whereabouts.FEWER:
        what = f"{backend} computes on GPU {on} alone, and has {own}"
        return warning(what, "give it fewer cards, or let its arguments use all")
    return ok(f"{backend} is on GPU {own}" if where is Whereabouts.RIGHT else f"{backend}: nobody can say which GPU")

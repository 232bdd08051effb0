"""The double's answers to GET: how the server and its engine are."""

from __future__ import annotations

import time

from viiwork_strata.testing.answer import Answer
from viiwork_strata.testing.machine import EngineState, Machine
from viiwork_strata.testing.refusal import Refusal
from viiwork_strata.testing.settings import VERSION


def page(machine: Machine, path: str) -> object:
    """The body for a path. Raises Refusal."""
    match path:
        case "/health" | "/api/health":
            return _health(machine)
        case "/slots":
            return _slots(machine)
        case "/status":
            return _status(machine)
        case "/v1/status":
            return _about(machine)
        case "/models" | "/v1/models":
            return _models(machine)
        case "/props":
            return _props(machine)
        case "/metrics":
            return _metrics(machine)
    raise Refusal(404, f"no such path {path}")


def _health(machine: Machine) -> dict[str, object]:
    settings = machine.settings
    told = {"status": "ok", "max_context": settings.max_context, "model": settings.model}
    return {**told, "images": False, "api_key": bool(settings.keys), "loaded": machine.loaded, "service": "strata"}


def _slots(machine: Machine) -> list[dict[str, object]]:
    """With several slots, a request that is alone runs outside the batch, where no slot shows it."""
    if not machine.loaded:
        return []
    n_ctx, alone = machine.settings.max_context, len(machine.places) > 1 and machine.fifo.served == 1
    return [
        {
            "id": slot.id,
            "n_ctx": n_ctx,
            "is_processing": (slot.busy if len(machine.places) > 1 else machine.fifo.busy) and not alone,
            "n_prompt_tokens": slot.held,
        }
        for slot in machine.places
    ]


def _status(machine: Machine) -> dict[str, object]:
    """Idle, it keeps the last request's figures."""
    last = machine.answer or Answer(0, 0, 0)
    told: dict[str, object] = {
        "busy": machine.fifo.busy,
        "queued": machine.fifo.waiting,
        "phase": machine.phase,
        "prompt_tokens": last.prompt,
        "generated": last.generated,
        "max_tokens": last.most,
        "tool": None,
        "tail": last.tail,
    }
    if machine.fifo.busy:
        elapsed = time.perf_counter() - last.started
        rate = last.generated / elapsed if elapsed > 0 else 0.0
        told |= {"elapsed_s": elapsed, "tokens_per_s": rate, "tokens_per_s_mean": rate}
    return told


def _about(machine: Machine) -> dict[str, object]:
    settings = machine.settings
    return {
        "service": "strata",
        "model": settings.model,
        "loaded": machine.loaded,
        "auto_load": True,
        "engine": VERSION if machine.loaded else None,
        "started": machine.started,
        "uptime_s": time.time() - machine.started,
        "context": settings.max_context,
        "concurrency": {"serving": len(machine.places), "requested": settings.slots},
        "vision": False,
        "activity": {"requests": machine.requests, "in_flight": machine.fifo.served},
    }


def _models(machine: Machine) -> dict[str, object]:
    """Empty when the engine is dead, not merely unloaded."""
    settings = machine.settings
    if machine.state is EngineState.DEAD:
        return {"object": "list", "data": []}
    status = {"value": "loaded" if machine.loaded else "unloaded"}
    told = {"object": "model", "status": status, "meta": {"n_ctx": settings.max_context}}
    told["architecture"] = {"input_modalities": ["text"]}
    data = [{"id": settings.model, **told, "aliases": list(settings.aliases)}]
    data += [{"id": alias, **told, "alias_of": settings.model} for alias in settings.aliases]
    return {"object": "list", "data": data}


def _props(machine: Machine) -> dict[str, object]:
    if not machine.loaded:
        raise Refusal(503, "the engine is not running")
    settings = machine.settings
    told = {"n_ctx": settings.max_context, "total_slots": len(machine.places), "model_alias": settings.model}
    return {**told, "is_sleeping": False, "build_info": f"Strata {VERSION}"}


def _metrics(machine: Machine) -> dict[str, object]:
    state = "unloaded" if not machine.loaded else "generating" if machine.fifo.busy else "idle"
    live = {"state": state, "queued": machine.fifo.waiting, "running": machine.fifo.served}
    return {"engine": "strata", "live": live, "requests": [], "totals": {"requests": machine.requests}}

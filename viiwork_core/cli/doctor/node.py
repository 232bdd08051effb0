"""The node that runs: its health, its backends, and whether it is the version that is installed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from typing import Any

from viiwork_core.cli.doctor.situation import Running, Situation, ok, problem, warning
from viiwork_core.contracts.doctor import Finding

_STARTING = "wait, or see its log (`viiwork status`)"


async def node(situation: Situation) -> Sequence[Finding]:
    """What it says of itself."""
    running = situation.running
    if running is None:
        return []
    found = [ok(f"{running.node} answers at {running.api.url}, viiwork {running.status['ver']}")]
    if situation.machine is not None and running.status["ver"] != version("viiwork"):
        what = f"{running.node} runs viiwork {running.status['ver']}, and {version('viiwork')} is installed"
        found.append(warning(what, "restart the node"))
    return [*found, *_models(running)]


def _models(running: Running) -> Iterator[Finding]:
    for model in running.status["models"]:
        if model.get("parked"):
            yield ok(f"{model['name']} is parked: `viiwork up {model['name']}` starts it")
            continue
        for backend in model["backends"]:
            yield _backend(backend)


def _backend(backend: Mapping[str, Any]) -> Finding:
    who, state = backend["id"], backend["status"]
    reason = str(backend.get("reason") or "").strip().partition("\n")[0]
    told = f"{who} is {state}{f': {reason}' if reason else ''}"
    if state == "healthy":
        respawns = backend["respawns"]
        if respawns:
            what = f"{who} is healthy, and was started again {respawns} times"
            return warning(what, "see in the node's log why it ended")
        return ok(f"{who} is healthy, {backend['busy']} of {backend['slots']} slots taken")
    if state == "starting":
        return warning(f"{who} is starting ({backend.get('phase', 'loading')})", _STARTING)
    if state in {"draining", "parked", "stopped"}:
        return ok(told)
    return problem(told, "see the node's log for the engine's last lines")

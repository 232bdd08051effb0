"""viiwork status, viiwork models: what a node says of itself and of the mesh, in the terminal.

Exit status of `status`: 0, 1 when a backend of a model that is configured and not parked is not healthy, 2 when no
node answers.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any, Final

import click

from viiwork_core.cli.answer import asking, print_json, print_table
from viiwork_core.cli.operator import Operator
from viiwork_core.observe.events import plain

UNWELL: Final = 1

Row = Sequence[str]

_BACKENDS: Final = ("MODEL", "BACKEND", "ENGINE", "STATE", "PHASE", "SLOTS", "QUEUE")
_MEMBERS: Final = ("MEMBER", "ADDRESS", "STATE", "VERSION", "UPTIME", "MODELS (BUSY/SLOTS)")
_FLEET: Final = ("MODEL", "SLOTS", "BUSY", "FREE", "QUEUE", "CONTEXT", "HOSTS")
_MODELS: Final = ("MODEL", "OWNED BY", "TARGET", "CONTEXT")


@click.command()
@click.option("--mesh", is_flag=True, help="Also what the whole mesh serves; with --json all members.")
@asking
def status(node: Operator, *, mesh: bool, as_json: bool) -> None:
    """Show this machine's node, its models and the members of its mesh.

    Exits with 1 when a model is not healthy that should be, with 2 when no node answers.
    """
    own = node.ask("GET", "/v1/status")
    if as_json:
        print_json(node.ask("GET", "/v1/cluster") if mesh else own)
    else:
        _show(own, node.ask("GET", "/v1/cluster"), node.ask("GET", "/v1/fleet/capacity") if mesh else None)
    if any(_unwell(model) for model in own["models"]):
        sys.exit(UNWELL)


@click.command()
@asking
def models(node: Operator, *, as_json: bool) -> None:
    """List the models that clients may ask for, with the smallest context that is served."""
    answer = node.ask("GET", "/v1/models")
    if as_json:
        print_json(answer)
        return
    rows = [
        (one["id"], one["owned_by"], one.get("target", "-"), str(one.get("context_length", "-")))
        for one in answer["data"]
    ]
    print_table([_MODELS, *rows])


def _show(own: dict[str, Any], cluster: dict[str, Any], fleet: dict[str, Any] | None) -> None:
    for line in _head(own):
        click.echo(line)
    if own["models"]:
        print_table([_BACKENDS, *(row for model in own["models"] for row in _backends(model))], before="\n")
    for line in _reasons(own["models"]):
        click.echo(line)
    members = [one for one in cluster["members"] if one["node_id"] != own["node_id"]]
    if members:
        print_table([_MEMBERS, *map(_member, members)], before="\n")
    if fleet is not None:
        print_table([_FLEET, *map(_served, fleet["models"])], before="\n")


def _head(own: dict[str, Any]) -> Iterator[str]:
    mesh = {"none": "no mesh"}.get(own["mesh"], f"{own['mesh']} mesh")
    drains = "  draining" if own.get("draining") else ""
    where = f"port {own['api_port']}  {mesh}{drains}"
    yield plain(f"{own['node']}  viiwork {own['ver']}  up {_time(own['uptime_s'])}  {where}")
    for card in own.get("gpus", ()):
        figures = [f"gpu {card['index']}", card.get("name", card.get("vendor", ""))]
        figures += [f"{card['util']:.0f} %"] if "util" in card else []
        if "vram_total_mb" in card:
            figures.append(f"{_gib(card.get('vram_used_mb'))} of {_gib(card['vram_total_mb'])} GiB")
        yield plain("  ".join(figures))[:80]


def _gib(mib: float | None) -> str:
    return "?" if mib is None else f"{mib / 1024:.1f}"


def _backends(model: dict[str, Any]) -> Iterator[Row]:
    name, queue = model["name"], str(model["queued"])
    engine = f"{model['engine']} {model.get('engine_version', '')}".rstrip()
    if not model["backends"]:
        yield name, "-", engine, "parked" if model.get("parked") else "-", "", "-", queue
    for one in model["backends"]:
        progress = f" {one['progress']:.0%}" if one.get("progress") is not None else ""
        phase = f"{one.get('phase', '')}{progress}".strip()
        yield name, one["id"], engine, one["status"], phase, f"{one['busy']}/{one['slots']}", queue
        name, engine, queue = "", "", ""


def _reasons(models: Sequence[dict[str, Any]]) -> Iterator[str]:
    for model in models:
        for one in model["backends"]:
            if one["status"] != "healthy" and one.get("reason"):
                yield f"{plain(one['id'])}: {plain(one['reason'].strip().partition(chr(10))[0])}"


def _member(one: dict[str, Any]) -> Row:
    up = _time(one["status"]["uptime_s"]) if one["status"] else "-"
    told = ", ".join(f"{model['name']} {model['busy']}/{model['slots']}" for model in one.get("models", ()))
    state = "silent" if one.get("stale") else "draining" if one.get("draining") else one["state"]
    return one["node"], one["addr"] or "-", state, one.get("ver", "-"), up, told or "-"


def _served(one: dict[str, Any]) -> Row:
    hosts = ", ".join(host["node"] + (" (stale)" if host.get("stale") else "") for host in one["hosts"])
    figures = (str(one[name]) for name in ("slots", "busy", "free", "queued"))
    return one["name"], *figures, str(one.get("ctx", "-")), hosts


def _unwell(model: dict[str, Any]) -> bool:
    return not model.get("parked") and any(one["status"] != "healthy" for one in model["backends"])


def _time(seconds: int) -> str:
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"

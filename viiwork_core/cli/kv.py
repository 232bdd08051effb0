"""viiwork kv: the caches of sessions that move between hosts."""

from __future__ import annotations

import sys
from typing import Any, Final

import click

from viiwork_core.cli.answer import asking, print_json, print_table
from viiwork_core.cli.completion import complete_sessions
from viiwork_core.cli.operator import Operator

PATH: Final = "/v1/kv"
FORGET: Final = "/v1/kv/forget"

_HELD: Final = ("SESSION", "MODEL", "WHERE", "TURN", "TOKENS", "MIB")
_OUT: Final = ("MODEL", "STATE", "SENT", "FAILED", "DROPPED", "SENT MIB", "OF FILES", "SEND S")
_IN: Final = ("MODEL", "RECEIVED", "REFUSED", "IMPORTED", "USELESS", "IMPORT FAILED", "IMPORT S")
_TURNS: Final = ("MODEL", "SWITCH", "WARM", "PARTLY", "COLD", "UNKNOWN")
_MIB: Final = 1 << 20


@click.group()
def kv() -> None:
    """The caches of sessions, and what moving them between hosts did."""


@kv.command()
@asking
def ls(node: Operator, *, as_json: bool) -> None:
    """List the sessions whose caches a node has: in its engines, and as replicas for others."""
    answer = node.ask("GET", PATH)
    if as_json:
        print_json(answer)
        return
    print_table([_HELD, *map(_held, answer["sessions"])])
    if store := answer["store"]:
        click.echo(f"replicas: {_mib(store['used_bytes'])} of {_mib(store['max_bytes'])} MiB")
    if answer["forgotten"]:
        click.echo(f"forgotten sessions that are remembered as such: {answer['forgotten']}")


def _held(one: dict[str, Any]) -> tuple[str, ...]:
    where = one["where"] if one["where"] == "replica" else f"{one['backend']}{_slot(one)}"
    size = _mib(one["bytes"]) if "bytes" in one else "-"
    return one["session"], one["model"], where, str(one["turn"]), str(one["tokens"]), size


def _slot(one: dict[str, Any]) -> str:
    return f" slot {one['slot']}" if "slot" in one else ""


@kv.command()
@click.argument("session", shell_complete=complete_sessions)
@asking
def forget(node: Operator, session: str, *, as_json: bool) -> None:
    """Drop all that the mesh keeps of SESSION: the client's name for it, or its key as `viiwork kv ls` shows it.

    Members that are away drop it when they are back: one that nobody has now is noted for them, which the command says.
    Exits with 1 while a member is alive and has not done it.
    """
    answer = node.ask("POST", FORGET, {"session": session})
    members = answer["members"]
    if as_json:
        print_json(answer)
    else:
        late = f"; not yet: {', '.join(members['missing'])} (they hear of it soon)" if members["missing"] else ""
        click.echo(_forgotten(answer))
        click.echo(f"{members['have']} of {members['alive']} members have done it{late}")
    if members["missing"]:
        sys.exit(1)


def _forgotten(answer: dict[str, Any]) -> str:
    sessions, replicas = ", ".join(answer["sessions"]), answer["replicas"]
    # A node of an earlier version does not tell what it held.
    if replicas or answer.get("held", True):
        return f"forgotten: {sessions}; replicas dropped: {replicas}"
    return (
        f"nothing was found of it: no cache on {answer['node']}, and no replica at the members that answered\n"
        f"noted as forgotten, for members that are away: {sessions}"
    )


@kv.command()
@asking
def stats(node: Operator, *, as_json: bool) -> None:
    """Show what moving caches did and took since the node's start, and how its sessions' turns came out."""
    answer = node.ask("GET", PATH)
    if as_json:
        print_json({"node": answer["node"], "store": answer["store"], "models": answer["models"]})
        return
    models = answer["models"]
    if not models:
        click.echo("no model of this node has kv_share")
        return
    print_table([_OUT, *map(_out, models)])
    for one in models:
        if reason := one.get("reason"):
            click.echo(f"{one['name']}: {reason}")
    print_table([_IN, *map(_in, models)], before="\n")
    if rows := [row for one in models for row in _turns(one)]:
        print_table([_TURNS, *rows], before="\n")


def _out(one: dict[str, Any]) -> tuple[str, ...]:
    return (
        one["name"],
        one["state"],
        *_counts(one, "sent", "failed", "dropped"),
        _mib(one["sent_bytes"]) if "sent_bytes" in one else "-",
        f"{one['sent_share']:.0%}" if "sent_share" in one else "-",
        _seconds(one, "send_seconds"),
    )


def _in(one: dict[str, Any]) -> tuple[str, ...]:
    counted = _counts(one, "received", "refused", "imported", "useless", "import_failed")
    return one["name"], *counted, _seconds(one, "import_seconds")


def _counts(one: dict[str, Any], *figures: str) -> tuple[str, ...]:
    return tuple(str(one.get(figure, "-")) for figure in figures)


def _seconds(one: dict[str, Any], figure: str) -> str:
    return f"{one[figure]:.1f}" if figure in one else "-"


def _turns(one: dict[str, Any]) -> list[tuple[str, ...]]:
    return [
        (one["name"], switch, *(str(reuse.get(word, 0)) for word in ("warm", "partly", "cold", "unknown")))
        for switch, reuse in one.get("turns", {}).items()
    ]


def _mib(size: int) -> str:
    return f"{size / _MIB:.1f}"

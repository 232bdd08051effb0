"""viiwork alias: the names that the mesh knows models by."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, BinaryIO, Final, TextIO

import click
import msgspec

from viiwork_core.cli import spreading
from viiwork_core.cli.answer import asking, json_text, print_json, print_table
from viiwork_core.cli.completion import complete_aliases, complete_models
from viiwork_core.cli.operator import Operator
from viiwork_core.errors import ConfigError, ViiworkError

PATH: Final = "/v1/aliases"
_COLUMNS: Final = ("ALIAS", "TARGET", "FALLBACKS", "STATE", "SERVED AS", "BY")


_fallback = click.option(
    "--fallback",
    "fallbacks",
    multiple=True,
    shell_complete=complete_models,
    help="A model to use instead; may be repeated.",
)
_force = click.option("--force", is_flag=True, help="Also when no node serves the target now.")


@click.group()
def alias() -> None:
    """Names that stand for models, the same on every node of the mesh."""


@alias.command()
@asking
def ls(node: Operator, *, as_json: bool) -> None:
    """List all aliases and what they stand for now."""
    answer = node.ask("GET", PATH)
    if as_json:
        print_json(answer)
        return
    print_table([_COLUMNS, *map(_row, answer["aliases"])])


def _row(one: dict[str, Any]) -> tuple[str, ...]:
    fallbacks = ", ".join(one["fallbacks"]) or "-"
    return one["name"], one["target"], fallbacks, one["state"], one["resolved"] or "-", one["updated_by"]


@alias.command(name="set")
@click.argument("name", shell_complete=complete_aliases)
@click.argument("target", shell_complete=complete_models)
@_fallback
@_force
@spreading.timeout
@spreading.wait
@asking
def set_(
    node: Operator,
    name: str,
    target: str,
    fallbacks: tuple[str, ...],
    timeout: float,
    *,
    force: bool,
    wait: bool,
    as_json: bool,
) -> None:
    """Let NAME stand for the model TARGET, on all nodes."""
    wanted = {"target": target, "fallbacks": fallbacks, "force": force}
    answer = node.ask("PUT", f"{PATH}/{_named(name)}", wanted)
    _tell(node, answer, timeout, wait=wait, as_json=as_json)


@alias.command()
@click.argument("name", shell_complete=complete_aliases)
@spreading.timeout
@spreading.wait
@asking
def rm(node: Operator, name: str, timeout: float, *, wait: bool, as_json: bool) -> None:
    """Let NAME stand for nothing, on all nodes."""
    _tell(node, node.ask("DELETE", f"{PATH}/{_named(name)}"), timeout, wait=wait, as_json=as_json)


@alias.command()
@click.argument("name", shell_complete=complete_aliases)
@spreading.timeout
@spreading.wait
@asking
def revert(node: Operator, name: str, timeout: float, *, wait: bool, as_json: bool) -> None:
    """Let NAME stand for what it stood for before; a second time undoes that."""
    _tell(node, node.ask("POST", f"{PATH}/{_named(name)}/revert", {}), timeout, wait=wait, as_json=as_json)


@alias.command()
@click.argument("name", shell_complete=complete_aliases)
@asking
def history(node: Operator, name: str, *, as_json: bool) -> None:
    """Show what NAME stands for and stood for, the newest first."""
    info = node.ask("GET", f"{PATH}/{_named(name)}")
    if as_json:
        print_json(info)
        return
    now = {"ver": info["version"], "by": info["updated_by"], "ts": info["updated_at"]}
    for one in ({**info, **now}, *info["history"]):
        when = datetime.fromtimestamp(one.get("ts", 0) / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
        click.echo(f"{one['ver']:>4}  {when}  {one['by']}  {_meaning(one)}")


@alias.command()
@click.argument("to", metavar="[FILE]", type=click.File("w", atomic=True), default="-")
@asking
def export(node: Operator, to: TextIO, *, as_json: bool) -> None:
    """Write all aliases with their histories to FILE, or print them, as JSON."""
    del as_json  # it is JSON anyhow
    to.write(json_text({"v": 1, "aliases": {name: one for page in _pages(node) for name, one in page.items()}}) + "\n")


def _pages(node: Operator) -> Iterator[dict[str, Any]]:
    after: str | None = ""
    while after is not None:
        page = node.ask("GET", f"{PATH}?table=1&after={after}")
        yield page["aliases"]
        after = page.get("next")


@alias.command(name="import")
@click.argument("source", metavar="[FILE]", type=click.File("rb"), default="-")
@asking
def import_(node: Operator, source: BinaryIO, *, as_json: bool) -> None:
    """Set every alias in FILE, as `export` wrote it, whether its target is served or not. Deleted ones are left out."""
    done: dict[str, str] = {}
    for name, one in _read(source.read()).items():
        wanted = {"target": one.target, "fallbacks": one.fallbacks or [], "force": True}
        try:
            done[name] = "set" if node.ask("PUT", f"{PATH}/{_named(name)}", wanted)["changed"] else "as it was"
        except ViiworkError as error:
            done[name] = f"refused: {error.message}"
    if as_json:
        print_json(done)
    else:
        for name, what in done.items():
            click.echo(f"{name}: {what}")
    if any(what.startswith("refused") for what in done.values()):
        sys.exit(1)


class _Kept(msgspec.Struct):
    """What import needs of a name's text."""

    target: str = ""
    fallbacks: list[str] | None = None
    deleted: bool = False


class _File(msgspec.Struct):
    v: int
    aliases: dict[str, _Kept]


def _read(raw: bytes) -> dict[str, _Kept]:
    try:
        read = msgspec.json.decode(raw, type=_File)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"the file is no export of aliases: {error}", remedy="make one: viiwork alias export"
        ) from None
    if read.v != 1:
        what = f"the file has version {read.v}, and this release reads version 1"
        raise ConfigError(what, remedy="import it with the release of viiwork that wrote it")
    return {name: one for name, one in read.aliases.items() if not one.deleted}


def _named(name: str) -> str:
    """A name that makes one part of a path, whatever else the node says about it."""
    if not name.strip(".") or any(character in name for character in "/?#%\\") or not name.isascii() or " " in name:
        raise ConfigError(f"{name!r} is no name for an alias", remedy="use 1 to 64 of A-Z a-z 0-9 . _ -")
    return name


def _tell(node: Operator, answer: dict[str, Any], timeout: float, *, wait: bool, as_json: bool) -> None:
    """Wait for the members, and say how many of them have it."""
    members = spreading.spread(node, f"{PATH}/{answer['name']}", timeout)["members"]
    if as_json:
        print_json({**answer, "members": members})
    else:
        click.echo(f"{answer['name']} -> {_meaning(answer['entry'])}{'' if answer['changed'] else ' (as it was)'}")
    spreading.tell(members, wait=wait, quiet=as_json)


def _meaning(write: dict[str, Any]) -> str:
    if not write.get("target"):
        return "nothing"
    return ", else ".join((write["target"], *write.get("fallbacks", ())))

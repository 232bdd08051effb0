"""viiwork key: who may ask this mesh, with what share and how much a day."""

from __future__ import annotations

from typing import Any, Final

import click
import msgspec

from viiwork_core.cli import spreading
from viiwork_core.cli.answer import asking, print_json, print_table
from viiwork_core.cli.operator import Operator
from viiwork_core.errors import ConfigError, ViiworkError
from viiwork_core.security.keys import MAX_DAILY_TOKENS, MAX_WEIGHT, NAME, NAME_REMEDY, digest_of, hash_text, new_token

PATH: Final = "/v1/keys"

_COLUMNS: Final = ("KEY", "WEIGHT", "USED TODAY", "OF", "MODELS", "FROM")


@click.group()
def key() -> None:
    """API keys: who may use the models, and how much. Without any the API is open."""


@key.command()
@asking
def ls(node: Operator, *, as_json: bool) -> None:
    """List all keys, and what each has used today (UTC)."""
    answer = node.ask("GET", PATH, signed=True)
    if as_json:
        print_json(answer)
    elif answer["keys"]:
        print_table([_COLUMNS, *map(_row, answer["keys"])])
    else:
        click.echo("there are no keys" + (": the API is open" if answer["open"] else ", and the API is closed"))


def _row(one: dict[str, Any]) -> tuple[str, ...]:
    limit = f"{one['daily_tokens']:,}" if one["daily_tokens"] else "-"
    models = ", ".join(one["models"]) or "all"
    return one["name"], str(one["weight"]), f"{one['used_today']:,}", limit, models, one.get("updated_by", one["from"])


def _models(context: click.Context, option: click.Parameter, value: tuple[str, ...]) -> list[str]:
    del context
    found = [name.strip() for part in value for name in part.split(",")]
    if not all(found):
        raise click.BadParameter("names models with commas between them", param=option)
    return list(dict.fromkeys(found))


def _limits(command: Any) -> Any:
    for option in (
        click.option("--models", multiple=True, callback=_models, help="Models and aliases, A,B. Default: all."),
        click.option(
            "--daily-tokens", type=click.IntRange(0, MAX_DAILY_TOKENS), default=0, help="Tokens a day. 0: no limit."
        ),
        click.option(
            "--weight", type=click.IntRange(1, MAX_WEIGHT), default=1, help="Its share where several keys wait."
        ),
    ):
        command = option(command)
    return command


@key.command()
@click.argument("name")
@_limits
@spreading.timeout
@spreading.wait
@asking
def new(
    node: Operator,
    name: str,
    weight: int,
    daily_tokens: int,
    models: list[str],
    timeout: float,
    *,
    wait: bool,
    as_json: bool,
) -> None:
    """Make a key NAME that counts on all nodes, and print its token, this once.

    The node gets to know its hash alone.
    """
    _check_name(name)
    token = new_token()
    limits = {"weight": weight, "daily_tokens": daily_tokens, "models": models}
    made = node.ask("PUT", f"{PATH}/{name}", {"hash": hash_text(digest_of(token)), **limits})["key"]
    # Whatever else fails: nobody can tell it again.
    if not as_json:
        click.echo(token)
    try:
        info = spreading.spread(node, f"{PATH}/{name}", timeout, signed=True)
    except ViiworkError:
        if as_json:
            print_json({**made, "token": token})
        raise
    if as_json:
        print_json({**info, "token": token})
    spreading.tell(info["members"], wait=wait, quiet=as_json, err=True)


@key.command()
@click.argument("name")
@_limits
def entry(name: str, weight: int, daily_tokens: int, models: list[str]) -> None:
    """Print a token and the entry of api.keys for it. No node is asked."""
    _check_name(name)
    token = new_token()
    limits = {"weight": weight, "daily_tokens": daily_tokens, "models": models}
    found = {"name": name, "hash": hash_text(digest_of(token)), **limits}
    click.echo(token)
    click.echo(f"the entry of api.keys:\n    - {msgspec.json.encode(found).decode()}", err=True)


@key.command()
@click.argument("name")
@click.option("--open", "opens", is_flag=True, help="Also the last key: the API is open after that.")
@spreading.timeout
@spreading.wait
@asking
def revoke(node: Operator, name: str, timeout: float, *, opens: bool, wait: bool, as_json: bool) -> None:
    """Let the key NAME count no more, on all nodes."""
    _check_name(name)
    node.ask("DELETE", f"{PATH}/{name}", {"open": opens})
    info = spreading.spread(node, f"{PATH}/{name}", timeout, signed=True)
    if as_json:
        print_json(info)
    else:
        click.echo(f"{name} is revoked")
    spreading.tell(info["members"], wait=wait, quiet=as_json)


def _check_name(name: str) -> None:
    if not NAME.fullmatch(name):
        raise ConfigError(f"{name!r} is no name for a key", remedy=NAME_REMEDY)

"""viiwork down, viiwork up: take models of a node down, and start them again."""

from __future__ import annotations

from typing import Any

import click

from viiwork_core.cli.answer import asking, print_json
from viiwork_core.cli.completion import complete_own_models
from viiwork_core.cli.drain import PATH as DRAIN
from viiwork_core.cli.operator import Operator
from viiwork_core.observe.events import plain


@click.command()
@click.argument("models", nargs=-1, shell_complete=complete_own_models)
@asking
def down(node: Operator, models: tuple[str, ...], *, as_json: bool) -> None:
    """Take MODELS down, or all, until `viiwork up` or the node's next start. Running requests may finish."""
    _tell(_parked(node, "/v1/models/down", models), as_json=as_json)


@click.command()
@click.argument("models", nargs=-1, shell_complete=complete_own_models)
@asking
def up(node: Operator, models: tuple[str, ...], *, as_json: bool) -> None:
    """Start MODELS again, or all that were taken down. Without MODELS, a drain of the node ends as well."""
    if not models and node.ask("GET", DRAIN)["state"] != "serving":
        told = node.ask("DELETE", DRAIN)
        if not as_json:
            click.echo(f"{plain(told['node'])} takes requests")
    _tell(_parked(node, "/v1/models/up", models), as_json=as_json)


def _parked(node: Operator, path: str, models: tuple[str, ...]) -> dict[str, Any]:
    answer: dict[str, Any] = node.ask("POST", path, {"models": models} if models else {})
    return answer


def _tell(answer: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(answer)
        return
    for model in answer["models"]:
        state = "down" if model["parked"] else "up"
        click.echo(f"{plain(model['name'])}: {'' if model['changed'] else 'already '}{state}")

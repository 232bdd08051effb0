"""viiwork completion: what a shell needs to complete commands, options, and names that the running node knows.

A name is completed within a second or not at all, and never with an error: a shell has no place for one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any, Final

import click
from click.shell_completion import CompletionItem, get_completion_class

from viiwork_core.cli.operator import Operator
from viiwork_core.config.load import load_config
from viiwork_core.errors import ViiworkError

VARIABLE: Final = "_VIIWORK_COMPLETE"
SHELLS: Final = ("bash", "zsh", "fish")
WITHIN_S: Final = 1.0

Names = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print what SHELL has to read to complete commands, options, and the names of models, aliases and nodes.

    \b
    bash  viiwork completion bash > ~/.local/share/bash-completion/completions/viiwork
    zsh   viiwork completion zsh > DIR/_viiwork, DIR being one of $fpath
    fish  viiwork completion fish > ~/.config/fish/completions/viiwork.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None, "the shells are click's own"
    maker = kind(ctx.find_root().command, {}, "viiwork", VARIABLE)
    # Not `source()`: it runs a bash to see how old it is, which may not be the one that reads this.
    click.echo(maker.source_template % maker.source_vars())


def _names(path: str, read: Callable[[Any], Iterable[tuple[str, str]]]) -> Names:
    """Completes from what the node answers: `read` makes names and what is told beside them of it."""

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        del param
        try:
            found = sorted(set(read(_node(ctx).ask("GET", path))))
        except (ViiworkError, LookupError, TypeError, AttributeError, OSError, ValueError):
            return []
        return [CompletionItem(name, help=beside or None) for name, beside in found if name.startswith(incomplete)]

    return complete


def _node(ctx: click.Context) -> Operator:
    """The node that the rest of the line means."""
    config = load_config(ctx.params.get("file"), os.environ)
    address, variable = ctx.params.get("api"), ctx.params.get("variable")
    if address:
        return Operator(Operator.checked(address), "", variable or config.mesh.secret_env, timeout_s=WITHIN_S)
    found = Operator.here(config, variable)
    found.timeout_s = WITHIN_S
    return found


def _models(answer: Any) -> Iterable[tuple[str, str]]:
    return ((one["id"], "alias" if "target" in one else str(one["owned_by"])) for one in answer["data"])


def _own_models(answer: Any) -> Iterable[tuple[str, str]]:
    return ((one["name"], "parked" if one.get("parked") else one["engine"]) for one in answer["models"])


def _aliases(answer: Any) -> Iterable[tuple[str, str]]:
    return ((one["name"], str(one["target"] or "")) for one in answer["aliases"])


def _nodes(answer: Any) -> Iterable[tuple[str, str]]:
    return ((one["addr"], one["node"]) for one in answer["members"] if one.get("addr"))


def _sessions(answer: Any) -> Iterable[tuple[str, str]]:
    return ((one["session"], one["model"]) for one in answer["sessions"])


def _requests(answer: Any) -> Iterable[tuple[str, str]]:
    return ((one["rid"], "") for one in answer["events"] if one.get("rid"))


complete_models = _names("/v1/models", _models)
"""Models and aliases of the mesh."""

complete_own_models = _names("/v1/status", _own_models)
"""Models of the node that is asked."""

complete_aliases = _names("/v1/aliases", _aliases)
complete_nodes = _names("/v1/cluster", _nodes)
"""Addresses of the members' APIs, with their names beside them."""

complete_sessions = _names("/v1/kv", _sessions)
complete_requests = _names("/v1/activity", _requests)
"""Requests that the node's activity log still knows."""

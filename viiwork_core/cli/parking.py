"""viiwork down, viiwork up: take models of this machine's node down, and start them again."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click
import httpx
import msgspec

from viiwork_core.clock import SystemClock
from viiwork_core.config.load import load_config
from viiwork_core.config.schema import Config
from viiwork_core.errors import ConfigError, ViiworkError
from viiwork_core.security.secret import load_secret
from viiwork_core.security.signing import TO, Signer

_TIMEOUT_S = 10.0
_ANY = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  # dialled as loopback, never bound

_file = click.option(
    "--config", "file", type=click.Path(path_type=Path), help="The node's configuration; default: the usual places."
)
_json = click.option("--json", "as_json", is_flag=True, help="Print the node's answer as JSON.")


class _Identity(msgspec.Struct):
    """What node.json tells of a running node; more may stand there."""

    api: str
    node_id: str


@click.command()
@click.argument("models", nargs=-1)
@_file
@_json
def down(models: tuple[str, ...], file: Path | None, *, as_json: bool) -> None:
    """Take MODELS down, or all, until `viiwork up` or the node's next start. Running requests may finish."""
    _park("/v1/models/down", models, file, as_json=as_json)


@click.command()
@click.argument("models", nargs=-1)
@_file
@_json
def up(models: tuple[str, ...], file: Path | None, *, as_json: bool) -> None:
    """Start MODELS again, or all that were taken down."""
    _park("/v1/models/up", models, file, as_json=as_json)


def _park(path: str, models: tuple[str, ...], file: Path | None, *, as_json: bool) -> None:
    config = load_config(file, os.environ)
    answer = _asked(config, _identity(config.node.state_dir), path, models)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(answer), indent=2).decode())
        return
    for model in answer["models"]:
        click.echo(f"{model['name']}: {'' if model['changed'] else 'already '}{'down' if model['parked'] else 'up'}")


def _identity(state_dir: Path) -> _Identity:
    path = state_dir / "node.json"
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Identity)
    except FileNotFoundError:
        raise ConfigError(
            f"no node runs with the state folder {state_dir}",
            remedy="start it with `viiwork serve`, or name its configuration with --config",
        ) from None
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error


def _asked(config: Config, node: _Identity, path: str, models: tuple[str, ...]) -> Any:
    """The node's answer. Raises ViiworkError with its words when it refuses."""
    body = msgspec.json.encode({"models": models} if models else {})
    headers = [("Content-Type", "application/json"), (TO, node.node_id)]
    try:
        signed = headers + _signature(config, path, headers, body)
        response = httpx.post(
            f"{_dialled(node.api)}{path}", content=body, headers=signed, timeout=_TIMEOUT_S, trust_env=False
        )
    except httpx.HTTPError as error:
        raise ViiworkError(f"the node at {node.api} does not answer: {error}", remedy="does it run?") from error
    try:
        answer = msgspec.json.decode(response.content)
        if response.is_success:
            return answer
        refusal = str(answer["error"]["message"])
    except (msgspec.DecodeError, KeyError, TypeError) as error:
        raise ViiworkError(f"{node.api} answers {response.status_code}, and not as a node does") from error
    raise ViiworkError(refusal)


def _signature(config: Config, path: str, headers: list[tuple[str, str]], body: bytes) -> list[tuple[str, str]]:
    """What proves to a node of a secured mesh that its secret is known here; nothing where none is set."""
    variable = config.mesh.secret_env
    if not os.environ.get(variable, "").strip():
        return []
    secret = load_secret(os.environ, variable=variable, open_mesh=False)
    assert secret is not None, "the variable is set"
    signer = Signer(secret.signature, node=f"viiwork-cli@{socket.gethostname()}", clock=SystemClock())
    return signer.sign("POST", path, headers, body)


def _dialled(api: str) -> str:
    """The node's own address, and loopback for one that listens on all."""
    host, port = urlsplit(api).hostname or "", urlsplit(api).port
    host = _ANY.get(host, host)
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"

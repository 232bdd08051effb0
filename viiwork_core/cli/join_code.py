"""viiwork join-code: the line that a new machine joins this node's mesh with.

The code goes to standard output and nowhere else; what a person should know of it goes to standard error.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import click

from viiwork_core.cli.answer import print_json
from viiwork_core.cli.operator import Operator
from viiwork_core.config import paths
from viiwork_core.config.env_file import with_env_file
from viiwork_core.config.load import find_config
from viiwork_core.config.schema import Config
from viiwork_core.errors import ConfigError, ViiworkError
from viiwork_core.node.addresses import mesh_host
from viiwork_core.registry.entry_points import load_plugins
from viiwork_core.registry.options import resolve
from viiwork_core.registry.reading import read_config
from viiwork_core.security.join_code import JoinCode, checked_address, encode
from viiwork_core.security.secret import read_secret


@click.command("join-code")
@click.option("--config", "file", type=click.Path(path_type=Path), help="The node's configuration.")
@click.option("--address", help="HOST:PORT that the new machine dials; default: this node's own in the mesh.")
@click.option("--secret-env", "variable", help="The variable with the mesh's secret; default: mesh.secret_env.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def join_code(file: Path | None, address: str | None, variable: str | None, *, as_json: bool) -> None:
    """Print the code by which another machine joins this node's mesh (viiwork init asks for it).

    The code of a secured mesh holds the secret of the mesh: anybody who has it can join and read what the members say.
    """
    file = file or find_config(os.environ)
    config = read_config(file, os.environ)
    if config.mesh.network == "none":
        remedy = "set mesh.network, or mesh.seeds, or run `viiwork init`"
        raise ConfigError("this node is in no mesh (mesh.network is none): there is nothing to join", remedy=remedy)
    environ, mesh = with_env_file(os.environ, file), config.mesh
    variable = variable or mesh.secret_env
    if file is None and not environ.get(variable, "").strip():
        raise _unconfigured()
    secret = read_secret(environ, variable=variable, open_mesh=mesh.open)
    made = JoinCode(checked_address(address or _address(config)), secret)
    for line in _notes(made, mesh.name):
        click.echo(line, err=True)
    code, secured = encode(made), secret is not None
    if as_json:
        print_json({"code": code, "address": made.address, "secured": secured, "mesh": mesh.name})
    else:
        click.echo(code)


def _unconfigured() -> ConfigError:
    """What comes before any word of a secret: without it the defaults are a secured mesh that nobody has set up."""
    places = ", ".join(map(str, paths.config_files(os.environ)))
    what = f"no configuration is found ({places}): there is no mesh here to join"
    return ConfigError(what, remedy="run `viiwork init` first, or name the node's file: --config FILE")


def _address(config: Config) -> str:
    """This node's, where others gossip with it: as the node says while it runs, else as it would find it."""
    host = config.mesh.advertise or _told(config) or mesh_host(config, resolve(config, load_plugins(os.environ)))
    if host is None:
        what = "this node's address in the mesh is not known yet"
        raise ConfigError(what, remedy="wait until the network is up, set mesh.advertise, or name --address HOST:PORT")
    return f"[{host}]:{config.mesh.bind_port}" if ":" in host else f"{host}:{config.mesh.bind_port}"


def _told(config: Config) -> str | None:
    with suppress(ViiworkError):
        return str(Operator.here(config).ask("GET", "/v1/status")["addr"])
    return None


def _notes(code: JoinCode, mesh: str) -> Iterator[str]:
    if code.secret is None:
        yield "This mesh is open: the code holds no secret, only an address."
    else:
        yield "The code below holds the secret of the mesh. Give it to nobody who may not join, and keep it in no log."
    if mesh != "default":
        yield f"The mesh has a name that the code does not carry: the new machine needs mesh.name: {mesh}."
    with suppress(ValueError):
        if ipaddress.ip_address(code.host).is_loopback:
            yield f"Only this machine reaches {code.host}: name another with --address, or set mesh.advertise."

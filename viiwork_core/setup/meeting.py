"""The meeting: how this machine comes into a mesh, of what was answered. It holds the secret and never shows it."""

from __future__ import annotations

import base64
import ipaddress
import os
import socket
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from viiwork_core.config.document import parse
from viiwork_core.config.env_file import with_env_file
from viiwork_core.config.load import load_config
from viiwork_core.config.schema import MeshConfig
from viiwork_core.errors import ConfigError
from viiwork_core.registry.registry import Registry
from viiwork_core.security.join_code import JoinCode, decode
from viiwork_core.security.secret import SECRET_BYTES, read_secret
from viiwork_core.setup.answers import MeshAnswer

SEEDS: Final = "seeds"
_ANYWHERE: Final = ("192.0.2.1", 9)
"""An address that is nobody's (RFC 5737): where this machine would send to, it has its usual address."""


@dataclass(frozen=True, slots=True)
class Meeting:
    """A mesh as this machine is to know it."""

    mode: str
    """secured, open or alone: how a mesh was found does not matter any more."""

    secret: bytes | None = field(default=None, repr=False)
    """32 bytes, of a secured one."""

    joined: bool = False
    """Others are there already."""

    name: str = "default"
    network: str | None = None
    seeds: tuple[str, ...] = ()
    advertise: str = ""
    bind_port: int = 7946

    kept: Mapping[str, Any] | None = None
    """The block as an earlier configuration has it, which stays."""

    variables: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The earlier node's, with it."""

    def block(self) -> dict[str, Any]:
        """The block of the configuration: what differs from its defaults."""
        if self.kept is not None:
            return dict(self.kept)
        if self.mode == "alone":
            return {"network": "none"}
        wanted: dict[str, Any] = {
            "network": self.network,
            "name": self.name,
            "open": self.mode == "open",
            "seeds": list(self.seeds),
            "advertise": self.advertise,
            "bind_port": self.bind_port,
        }
        defaults = MeshConfig.model_construct()
        return {
            key: value
            for key, value in wanted.items()
            if value != (list(of) if isinstance(of := getattr(defaults, key), tuple) else of)
        }

    def environment(self) -> dict[str, str]:
        """Variables that the node needs: the secret, as its configuration names it."""
        if self.kept is not None or self.secret is None:
            return dict(self.variables)
        return {MeshConfig.model_construct().secret_env: base64.b64encode(self.secret).decode()}


def arrange(
    answer: MeshAnswer,
    environ: Mapping[str, str],
    registry: Registry,
    *,
    earlier: Meeting | None = None,
    deaf: Collection[str] = (),
) -> Meeting:
    """What was answered, as a mesh. `earlier`: that which the machine is in; `deaf`: the discoveries that cannot look
    here. Raises ConfigError for a join code that is none, with what is wrong with it."""
    mode = answer.mode or ("alone" if earlier is None else "keep")
    if mode == "keep":
        return _kept(earlier)
    meeting = Meeting(
        mode,
        name=answer.name,
        network=answer.network,
        seeds=answer.seeds,
        advertise=answer.advertise,
        bind_port=answer.bind_port,
    )
    if mode == "join":
        meeting = joined(meeting, decode(_code(answer, environ)))
    elif mode == "secured":
        same = earlier is not None and earlier.name == meeting.name
        secret = earlier.secret if earlier is not None and same else None
        meeting = replace(meeting, secret=secret or os.urandom(SECRET_BYTES))
    return meeting if mode == "alone" else _reachable(meeting, registry, deaf)


def _kept(earlier: Meeting | None) -> Meeting:
    if earlier is not None:
        return earlier
    what = "mesh.mode: keep: there is no mesh to keep: its configuration and its secret are not both here"
    raise ConfigError(what, remedy="give --replace on a machine that is in a mesh, or choose another mode")


def earlier_meeting(config: Path, environ: Mapping[str, str]) -> Meeting | None:
    """The mesh of a configuration that is there, its block and its secret as they are.

    None: it is in none, or what stands there cannot be read, or its secret cannot.
    """
    try:
        mesh = load_config(config, environ).mesh
        block = parse(config.read_text(encoding="utf-8"), str(config))[0].get("mesh")
        known = with_env_file(environ, config)
        found = read_secret(known, variable=mesh.secret_env, open_mesh=mesh.open)
    except (ConfigError, OSError, UnicodeDecodeError):
        return None
    if mesh.network == "none":
        return None
    names = () if mesh.open else (mesh.secret_env, mesh.secret_prev_env)
    return Meeting(
        "open" if mesh.open else "secured",
        None if mesh.open else found,
        joined=True,
        name=mesh.name,
        network=mesh.network,
        seeds=mesh.seeds,
        advertise=mesh.advertise,
        bind_port=mesh.bind_port,
        kept=block or {},
        variables={name: known[name] for name in names if known.get(name)},
    )


def joined(meeting: Meeting, code: JoinCode) -> Meeting:
    """The mesh that a code leads into. Raises ConfigError when its member's name is not known here."""
    seeds = tuple(dict.fromkeys((_resolved(code), *meeting.seeds)))
    mode = "open" if code.secret is None else "secured"
    return replace(meeting, mode=mode, secret=code.secret, seeds=seeds, joined=True)


def _code(answer: MeshAnswer, environ: Mapping[str, str]) -> str:
    if answer.code is not None:
        return answer.code
    if answer.code_env is not None:
        code = environ.get(answer.code_env, "")
        if not code.strip():
            raise ConfigError(f"mesh.code_env: {answer.code_env} is not set", remedy="set it to the join code")
        return code
    assert answer.code_file is not None, "the answers were checked"
    try:
        with answer.code_file.open(encoding="utf-8") as file:
            return file.read(1 << 16)
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise ConfigError(
            f"mesh.code_file: {answer.code_file} cannot be read: {why}",
            remedy="write what `viiwork join-code` prints into it",
        ) from error


def _resolved(code: JoinCode) -> str:
    """The member's address as mesh.seeds takes it: digits."""
    try:
        host = str(ipaddress.ip_address(code.host))
    except ValueError:
        try:
            host = str(socket.getaddrinfo(code.host, code.port, type=socket.SOCK_STREAM)[0][4][0])
        except OSError as error:
            raise ConfigError(
                f"the join code names {code.host}, which is not known here: {error.strerror}",
                remedy="make one with an address that this machine reaches: viiwork join-code --address IP:PORT",
            ) from error
    return f"[{host}]:{code.port}" if ":" in host else f"{host}:{code.port}"


def _reachable(meeting: Meeting, registry: Registry, deaf: Collection[str]) -> Meeting:
    """Where nothing works that could find others or tell this machine's address, both are written down; where one of
    several works, its network."""
    able = [name for name in finders(registry) if name not in deaf]
    if meeting.network is None and not meeting.seeds:
        if not able:
            meeting = replace(meeting, network=SEEDS)
        elif len(able) == 1 < len(finders(registry)):
            meeting = replace(meeting, network=network_of(able[0], registry))
    if meeting.network == SEEDS and not meeting.seeds and not meeting.advertise:
        return replace(meeting, advertise=usual_address())
    return meeting


def finders(registry: Registry) -> list[str]:
    """The installed discoveries that look by themselves."""
    return [name for name in registry.names("discovery") if name != SEEDS and registry.discovery(name).networks]


def network_of(discovery: str, registry: Registry) -> str:
    """What mesh.network calls the network in which a discovery looks."""
    return min(registry.discovery(discovery).networks, default=discovery)


def usual_address() -> str:
    """The address of this machine that others most likely reach. Nothing is sent. Empty: it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_ANYWHERE)
        except OSError:
            return ""
        address: str = probe.getsockname()[0]
        return "" if ipaddress.ip_address(address).is_unspecified else address

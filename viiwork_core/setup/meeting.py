"""The meeting: how this machine comes into a mesh, of what was answered. It holds the secret and never shows it."""

from __future__ import annotations

import base64
import ipaddress
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from viiwork_core.config.schema import MeshConfig
from viiwork_core.errors import ConfigError
from viiwork_core.registry.registry import Registry
from viiwork_core.security.join_code import JoinCode, decode
from viiwork_core.security.secret import SECRET_BYTES
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

    def block(self) -> dict[str, Any]:
        """The block of the configuration: what differs from its defaults."""
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
        if self.secret is None:
            return {}
        return {MeshConfig.model_construct().secret_env: base64.b64encode(self.secret).decode()}


def arrange(answer: MeshAnswer, environ: Mapping[str, str], registry: Registry) -> Meeting:
    """What was answered, as a mesh. Raises ConfigError for a join code that is none, with what is wrong with it."""
    meeting = Meeting(
        answer.mode,
        name=answer.name,
        network=answer.network,
        seeds=answer.seeds,
        advertise=answer.advertise,
        bind_port=answer.bind_port,
    )
    if answer.mode == "join":
        meeting = joined(meeting, decode(_code(answer, environ)))
    elif answer.mode == "secured":
        meeting = replace(meeting, secret=os.urandom(SECRET_BYTES))
    return meeting if answer.mode == "alone" else _reachable(meeting, registry)


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


def _reachable(meeting: Meeting, registry: Registry) -> Meeting:
    """Where nothing is installed that could find others or tell this machine's address, both are written down."""
    if meeting.network is None and not meeting.seeds and not finders(registry):
        meeting = replace(meeting, network=SEEDS)
    if meeting.network == SEEDS and not meeting.seeds and not meeting.advertise:
        return replace(meeting, advertise=usual_address())
    return meeting


def finders(registry: Registry) -> list[str]:
    """The installed discoveries that look by themselves."""
    return [name for name in registry.names("discovery") if name != SEEDS and registry.discovery(name).networks]


def usual_address() -> str:
    """The address of this machine that others most likely reach. Nothing is sent. Empty: it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_ANYWHERE)
        except OSError:
            return ""
        address: str = probe.getsockname()[0]
        return "" if ipaddress.ip_address(address).is_unspecified else address

"""The core's part of the configuration: strict, frozen, every key with its default.

Plugins' blocks stand beside the core's keys (models[].<engine>, routing.<policy>, mesh.<discovery>). They are kept as
they are and read in a second pass, when the plugins are known.
"""

from __future__ import annotations

import ipaddress
import os
import re
import socket
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr, model_validator
from pydantic_core import PydanticCustomError

from viiwork_core.config import paths
from viiwork_core.config.durations import parse_duration, parse_size
from viiwork_core.config.problems import Problem, SourceMap

T = TypeVar("T")

_HOST_NAME = re.compile(r"[A-Za-z0-9._-]{1,253}")
_WORD = re.compile(r"\S{1,128}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")


def _misplaced(keys: tuple[str, ...], what: str, remedy: str = "") -> PydanticCustomError:
    """An error of a whole block that is about one of its keys."""
    return PydanticCustomError("misplaced", "{what}", {"keys": keys, "what": what, "remedy": remedy})


def _word(value: str) -> str:
    if not _WORD.fullmatch(value):
        raise ValueError("must be 1 to 128 characters without white space")
    return value


def _host_name(value: str) -> str:
    if not _HOST_NAME.fullmatch(value):
        raise ValueError("must be 1 to 253 of the characters A-Z a-z 0-9 . _ -")
    return value


def _variable(value: str) -> str:
    if not _VARIABLE.fullmatch(value):
        raise ValueError("must be the name of an environment variable; put the secret into that variable, not here")
    return value


def _ip(value: str) -> str:
    try:
        return str(ipaddress.ip_address(value))
    except ValueError:
        raise ValueError("must be an IP address") from None


def _own_ip(value: str) -> str:
    address = _ip(value)
    if ipaddress.ip_address(address).is_unspecified:
        raise ValueError("must be an address that others can reach; a wildcard is none")
    return address


def _own_ip_or_empty(value: str) -> str:
    return _own_ip(value) if value else value


def _each_once(value: tuple[int, ...]) -> tuple[int, ...]:
    if len(set(value)) != len(value):
        raise ValueError("names a GPU twice; list each index once")
    return value


def _seed(value: str) -> str:
    host, _, port = value.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    try:
        address = ipaddress.ip_address(host[1:-1] if bracketed else host)
    except ValueError:
        address = None
    if address is None or bracketed != (address.version == 6) or not re.fullmatch(r"[1-9]\d{0,4}", port, re.ASCII):
        raise ValueError("must be ip:port; write the address in digits, IPv6 in brackets, such as 192.0.2.7:7946")
    if int(port) > 65535:
        raise ValueError("must have a port of 1 to 65535")
    return f"[{address}]:{port}" if bracketed else f"{address}:{port}"


def _listed(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


def _path(value: object) -> object:
    return Path(value).expanduser() if isinstance(value, str) and value else value


Word = Annotated[str, AfterValidator(_word)]
HostName = Annotated[str, AfterValidator(_host_name)]
Variable = Annotated[str, AfterValidator(_variable)]
Ip = Annotated[str, AfterValidator(_ip)]
OwnIp = Annotated[str, AfterValidator(_own_ip)]
Seed = Annotated[str, AfterValidator(_seed)]
File = Annotated[Path, BeforeValidator(_path)]
Seconds = Annotated[float, BeforeValidator(parse_duration)]
Positive = Annotated[float, Field(gt=0), BeforeValidator(parse_duration)]
Bytes = Annotated[int, Field(ge=1), BeforeValidator(parse_size)]
Tuple = Annotated[tuple[T, ...], BeforeValidator(_listed)]
Port = Annotated[int, Field(ge=1, le=65535)]
Count = Annotated[int, Field(ge=0)]
AtLeastOne = Annotated[int, Field(ge=1)]


class Block(BaseModel):
    """A block of core keys: an unknown one is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class OpenBlock(BaseModel):
    """A block in which plugins' blocks stand beside the core's keys; pass 1 says which may."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)

    @property
    def blocks(self) -> Mapping[str, Any]:
        """The plugins' blocks, unread, by name."""
        return MappingProxyType({name: value or {} for name, value in (self.model_extra or {}).items()})


class NodeConfig(Block):
    """node: who this machine is."""

    name: HostName = Field(default_factory=socket.gethostname, validate_default=True)
    state_dir: File = Field(default_factory=lambda: paths.state_dir(os.environ))


class ApiConfig(Block):
    """api: where clients connect."""

    host: Ip | None = None
    """None: loopback and the mesh's address."""

    port: Annotated[int, Field(ge=0, le=65535)] = 8086
    """0: a free port."""

    max_body: Bytes = 32 << 20


class MeshConfig(OpenBlock):
    """mesh: how this node and the others find and trust each other."""

    network: Literal["none", "seeds", "lan", "tailnet"] | None = None
    """None: every installed discovery."""

    name: Word = "default"
    bind_port: Port = 7946
    advertise: Annotated[str, AfterValidator(_own_ip_or_empty)] = ""
    """The address that others reach this node at; empty: found by itself."""

    open: bool = False
    secret_env: Variable = "VIIWORK_MESH_SECRET"  # noqa: S105  # the name of a variable
    secret_prev_env: Variable = "VIIWORK_MESH_SECRET_PREV"  # noqa: S105  # the name of a variable
    seeds: Tuple[Seed] = ()
    """ip:port, IPv6 in brackets."""

    rejoin_interval: Positive = 60.0
    capacity_poll: Positive = 1.0

    @model_validator(mode="before")
    @classmethod
    def _seeds_are_a_network(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("network") is None and data.get("seeds"):
            return {**data, "network": "seeds"}
        return data

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.network == "none" and self.seeds:
            raise _misplaced(("network",), "is none, but mesh.seeds names nodes", "remove one of the two")
        return self


class RoutingConfig(OpenBlock):
    """routing: which place a request tries first, and how long it waits for one."""

    policy: Word = "least_busy"
    queue_max: Count = 64
    """Waiting requests a model; 0: none waits."""

    queue_timeout: Seconds = 20.0
    forward_retry: Count = 1
    stale_after: Positive = 3.0


class HealthConfig(Block):
    """health: when a backend counts as sick, and what is done then."""

    interval: Positive = 5.0
    timeout: Positive = 10.0
    max_failures: AtLeastOne = 3
    respawn_grace: Seconds = 60.0
    max_respawns: Count = 3


class KvShareConfig(Block):
    """models[].kv_share: hosts of one group hand each other the caches of sessions."""

    group: Word
    min_tokens: Count = 8192
    max_gib: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 16.0
    address: OwnIp | None = None
    """Where this node receives caches; None: the mesh's address."""


class ModelConfig(OpenBlock):
    """models[]: one model that this node serves."""

    name: Word
    engine: Word
    path: File | None = None
    context: AtLeastOne
    """Tokens per slot."""

    parallel: AtLeastOne = 1
    """Slots per backend."""

    gpus: Annotated[Tuple[Count], AfterValidator(_each_once)] = ()
    """Host indices; empty: CPU."""

    gpus_per_backend: AtLeastOne = 1
    startup_timeout: Positive | None = None
    """Seconds; None: the engine's own."""

    args: Tuple[str] = ()
    env: Mapping[Variable, str] = Field(default_factory=dict)
    kv_share: KvShareConfig | None = None

    @property
    def backends(self) -> int:
        """How many backends the model has on this node."""
        return max(1, len(self.gpus) // self.gpus_per_backend)

    @property
    def block(self) -> Mapping[str, Any]:
        """The engine's own block, unread."""
        block: Mapping[str, Any] = self.blocks.get(self.engine, {})
        return block

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.gpus and len(self.gpus) % self.gpus_per_backend:
            raise _misplaced(("gpus_per_backend",), f"does not divide the {len(self.gpus)} GPUs of this model")
        return self


class Config(Block):
    """The whole configuration. An empty document is one: no models, all defaults."""

    node: NodeConfig = Field(default_factory=NodeConfig)
    api: ApiConfig = Field(default_factory=ApiConfig)
    mesh: MeshConfig = Field(default_factory=MeshConfig)
    routing: RoutingConfig = Field(default_factory=RoutingConfig)
    health: HealthConfig = Field(default_factory=HealthConfig)
    models: Tuple[ModelConfig] = ()

    # Beside the fields, so that no key of the file can set them.
    _source: SourceMap = PrivateAttr(default_factory=SourceMap)
    _warnings: tuple[str, ...] = PrivateAttr(default=())

    @property
    def source(self) -> SourceMap:
        """Where in the file each key stands."""
        return self._source

    @property
    def warnings(self) -> tuple[str, ...]:
        """Keys that were read over, a line each."""
        return self._warnings

    def from_file(self, source: SourceMap, warnings: Iterable[str]) -> Self:
        """The same configuration, knowing where it came from."""
        copy = self.model_copy()
        copy._source, copy._warnings = source, tuple(warnings)
        return copy


def model_conflicts(models: Mapping[int, ModelConfig], *, gpus_shared: bool) -> list[Problem]:
    """What is wrong between models that are right one by one, given by their place in the list.

    `gpus_shared`: several models may use one GPU, as on machines whose only GPU is part of the chip.
    """
    problems, names, owners = [], dict[str, int](), dict[int, int]()
    for index, model in models.items():
        if (first := names.setdefault(model.name, index)) != index:
            problems.append(Problem(("models", index, "name"), f"is the name of models[{first}] too", "rename one"))
        for gpu in () if gpus_shared else model.gpus:
            if (owner := owners.setdefault(gpu, index)) != index:
                what = f"GPU {gpu} belongs to models[{owner}] already"
                problems.append(Problem(("models", index, "gpus"), what, "give each GPU to one model"))
    return problems

"""The core's part of the configuration: strict, frozen, every key with its default.

Plugins' blocks stand beside the core's keys (models[].<engine>, routing.<policy>, mesh.<discovery>). They are kept as
they are and read in a second pass, when the plugins are known. The texts under the keys are what users read: they
become docs/config.md and the JSON schema.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, PrivateAttr, model_validator

from viiwork_core.config import paths
from viiwork_core.config.api_key import ApiKeyConfig
from viiwork_core.config.blocks import Block, OpenBlock, misplaced
from viiwork_core.config.catalog import CatalogConfig
from viiwork_core.config.model import KvShareConfig, ModelConfig
from viiwork_core.config.problems import SourceMap
from viiwork_core.config.telemetry import TelemetryConfig
from viiwork_core.config.values import (
    AtLeastOne,
    Bytes,
    Count,
    File,
    HostName,
    Ip,
    Origin,
    OwnIpOrEmpty,
    Port,
    Positive,
    Seconds,
    Seed,
    Tuple,
    Variable,
    Word,
)
from viiwork_core.security.keys import MAX_KEYS

__all__ = [
    "ActivityConfig",
    "ApiConfig",
    "Config",
    "GpuConfig",
    "HealthConfig",
    "KvShareConfig",
    "MeshConfig",
    "ModelConfig",
    "NodeConfig",
    "RoutingConfig",
    "TelemetryConfig",
]

_PROMPT_HISTORY = 1000


def _full(value: object) -> object:
    if value != "full":
        what = "must be full: every node asks for the secret or none does"
        raise ValueError(f"{what}; to give an open mesh one, set the variable on all its nodes, then restart them all")
    return value


def _kept(value: object) -> object:
    """YAML reads a bare off as false."""
    if value is False or value in ("off", "sizes", "full"):
        return value or "off"
    raise ValueError("must be off, sizes or full")


def _at_least_one_or_default(value: int) -> int:
    return value if value >= 1 else _PROMPT_HISTORY


class NodeConfig(Block):
    """Who this machine is."""

    name: HostName = Field(default_factory=socket.gethostname, validate_default=True)
    """What the other nodes and clients call this one; unique in the mesh. Default: the machine's host name."""

    state_dir: File = Field(default_factory=lambda: paths.state_dir(os.environ))
    """Folder for what outlives a restart. Default: /var/lib/viiwork for root, else viiwork below XDG_STATE_HOME
    (~/.local/state)."""


class CorsConfig(Block):
    """Which web pages may use the API from a browser (docs/access.md). Programs that are no browsers are not asked."""

    allow_origins: Tuple[Origin] | None = None
    """Origins, such as `https://chat.example.org`, `http://localhost:*`, `*.example.org` (the names below it) or `*`
    (all). A host without a scheme is meant on http and https and every port. Unset: this machine's pages (`localhost`,
    `127.0.0.1`, `[::1]`), and those of the tailnet by whose name the node is called. `[]`: none."""

    allow_tailnet_ips: bool = True
    """Also pages at addresses of a tailnet, 100.64.0.0/10 and fd7a:115c:a1e0::/48, unless allow_origins is []."""


class ApiConfig(Block):
    """Where clients connect, and how much they may send."""

    host: Ip | None = None
    """The one address to listen on. Unset: loopback and the address that the mesh uses. 0.0.0.0: all."""

    port: Annotated[int, Field(ge=0, le=65535)] = 8086
    """TCP port. 0: a free one; node.json in node.state_dir tells which."""

    max_body: Bytes = 32 << 20
    """Size of a request's body; a larger one is answered 413."""

    max_inflight_bytes: Bytes = 512 << 20
    """Bodies of all requests that wait or run, together; beyond it a request is answered 429. At least max_body."""

    max_connections: AtLeastOne = 16384
    """Connections of clients at one time, idle ones too. Each takes one of the process's open files."""

    stream_wait: bool = False
    """true: a streamed request that has to wait, for a slot or for its first token, is answered before that, with
    comments until then, so that its status is 200 whatever happens. false: only for requests with
    X-Viiwork-Stream-Wait: 1."""

    cors: CorsConfig = Field(default_factory=CorsConfig)
    """Which web pages may use the API. Default: this machine's."""

    catalog: CatalogConfig = Field(default_factory=CatalogConfig)
    """How OpenCode's list of models calls this node. Default: viiwork."""

    keys: Annotated[Tuple[ApiKeyConfig], Field(max_length=MAX_KEYS)] = ()
    """Keys of which every client of this node must show one. They count beside those of `viiwork key new`, which all
    nodes of a mesh have. Empty, and none of those: the API is open. Read again by SIGHUP. Not in an open mesh."""

    @model_validator(mode="after")
    def _keys_differ(self) -> Self:
        for index, key in enumerate(self.keys):
            for before, other in enumerate(self.keys[:index]):
                if key.name == other.name:
                    raise misplaced(("keys", index, "name"), f"is the name of keys[{before}] too", "rename one")
                if key.hash == other.hash:
                    raise misplaced(("keys", index, "hash"), f"is that of keys[{before}] too", "make another token")
        return self

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.max_body > self.max_inflight_bytes:
            remedy = "raise it, or lower max_body"
            raise misplaced(("max_inflight_bytes",), "is less than one body of max_body", remedy)
        return self


class MeshConfig(OpenBlock):
    """How this node and the others find and trust each other. The block of a discovery goes here too, under its name
    or its network's."""

    network: Word | None = None
    """Where the other nodes are looked for: seeds, lan, tailnet, or the name of an installed discovery; none: a machine
    on its own, without gossip and secret. Unset: seeds if there are some, else wherever an installed discovery can
    look."""

    name: Word = "default"
    """Nodes of differently named meshes do not meet."""

    bind_port: Port = 7946
    """Port of the gossip, TCP and UDP."""

    advertise: OwnIpOrEmpty = ""
    """The address that others reach this node at. Empty: found by itself."""

    open: bool = False
    """true: a mesh without a secret. Anybody who reaches the port can join it."""

    secret_env: Variable = "VIIWORK_MESH_SECRET"  # noqa: S105  # the name of a variable
    """Environment variable with the secret of the mesh, 32 bytes in base64. Never the secret itself."""

    secret_prev_env: Variable = "VIIWORK_MESH_SECRET_PREV"  # noqa: S105  # the name of a variable
    """Environment variable with the secret before this one, while a mesh changes it."""

    secret_enforce: Annotated[Literal["full"], BeforeValidator(_full)] = "full"  # noqa: S105  # a word
    """full: nothing without the secret is let in. There is no other way."""

    seeds: Tuple[Seed] = ()
    """Gossip addresses of other nodes, IPv6 in brackets. One that is up is enough."""

    rejoin_interval: Positive = 60.0
    """How often the discoveries are asked for nodes that are missing."""

    capacity_poll: Positive = 1.0
    """How often each other node is asked what it has room for."""

    @model_validator(mode="before")
    @classmethod
    def _seeds_are_a_network(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("network") is None and data.get("seeds"):
            return {**data, "network": "seeds"}
        return data

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.network == "none" and self.seeds:
            raise misplaced(("network",), "is none, but mesh.seeds names nodes", "remove one of the two")
        return self


class RoutingConfig(OpenBlock):
    """Which place a request tries first, and how long it waits for one. The policy's own block goes here too."""

    policy: Word = "fastest"
    """The plugin that ranks the places with room."""

    performance: bool | None = None
    """false: the policy is least_busy. true: fastest. Not beside policy."""

    queue_max: Count = 64
    """Requests of one model that wait for a slot; one more is answered 429. 0: none waits."""

    queue_timeout: Seconds = 20.0
    """How long a request waits in all, then it is answered 429."""

    forward_retry: Count = 1
    """Further places that are tried after a refusal, before the request waits again."""

    stale_after: Positive = 3.0
    """Age from which another node's report is not believed."""

    trace: File | None = None
    """File to which each answered request is written, for `viiwork simulate --trace`: times, sizes and keyed hashes of
    sessions, no text. Two files of 64 MiB at most, the older one with .1 at its end. Unset: nothing is written."""


class HealthConfig(Block):
    """When a backend counts as sick, and what is done then."""

    interval: Positive = 5.0
    """Time between two probes of a backend."""

    timeout: Positive = 10.0
    """How long a probe may take."""

    max_failures: AtLeastOne = 3
    """Failed probes in a row after which a backend is ended and started again."""

    respawn_grace: Seconds = 60.0
    """How long the requests that run there may hold that up, or a stop of the node."""

    max_respawns: Count = 3
    """Starts again after which a backend is given up. The count is back to 0 after ten minutes of health."""


class GpuConfig(Block):
    """Whose cards this machine has."""

    vendor: Literal["auto", "nvidia", "amd", "apple", "none"] = "auto"
    """auto: looked for when the node starts. none: cards are neither read nor pinned."""

    power_limit_watts: Count = 0
    """Watts. 0: the cards' own limit. Another one is not set yet: a warning."""


class ActivityConfig(Block):
    """What the node remembers of what it did, in memory only."""

    prompts: Annotated[Literal["off", "sizes", "full"], BeforeValidator(_kept)] = "off"
    """What is kept of the requests of this node's clients, for its operator (docs/privacy.md). sizes: how many
    messages, characters and tokens. full: also the texts of requests and answers, up to 50,000 characters each."""

    prompt_history: Annotated[int, Field(le=1_000_000), AfterValidator(_at_least_one_or_default)] = _PROMPT_HISTORY
    """Requests of which that is kept, and their texts as far as 64 MiB hold them; the oldest goes first. Below 1: the
    default."""

    event_history: Annotated[int, Field(ge=1, le=1_000_000)] = 2000
    """Events that are kept; the oldest goes first."""


class ListenersConfig(OpenBlock):
    """Plugins that receive this node's events: a block for each, under its name, which may be empty."""


class Config(Block):
    """The configuration of one machine. An empty document is one: no models, all defaults."""

    node: NodeConfig = Field(default_factory=NodeConfig)
    api: ApiConfig = Field(default_factory=ApiConfig)
    mesh: MeshConfig = Field(default_factory=MeshConfig)
    routing: RoutingConfig = Field(default_factory=RoutingConfig)
    health: HealthConfig = Field(default_factory=HealthConfig)
    gpu: GpuConfig = Field(default_factory=GpuConfig)
    activity: ActivityConfig = Field(default_factory=ActivityConfig)
    telemetry: TelemetryConfig = Field(default_factory=TelemetryConfig)
    listeners: ListenersConfig = Field(default_factory=ListenersConfig)
    models: Tuple[ModelConfig] = ()

    @model_validator(mode="after")
    def _keys_need_a_secret(self) -> Self:
        if self.api.keys and self.mesh.open and self.mesh.network != "none":
            what = "cannot be kept in an open mesh: any machine could join it and ask without a key"
            remedy = "give the mesh a secret instead of mesh.open, or remove the keys"
            raise misplaced(("api", "keys"), what, remedy)
        return self

    # Beside the fields, so that no key of the file can set them.
    _source: SourceMap = PrivateAttr(default_factory=SourceMap)
    _warnings: tuple[str, ...] = PrivateAttr(default=())

    @property
    def source(self) -> SourceMap:
        """On which line of the file each key is."""
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

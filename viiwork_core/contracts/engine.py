"""The engine contract: how a plugin describes a program that serves one model, so that the core can run it.

The core starts, watches, pins and ends the process. The plugin says what to start, asks the program how it is, and
states as data how its HTTP interface behaves.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

from viiwork_core.contracts.context import Context
from viiwork_core.contracts.options import NoOptions, PluginOptions


class Vendor(StrEnum):
    """Who made the accelerator that a backend runs on."""

    NVIDIA = "nvidia"
    AMD = "amd"
    APPLE = "apple"
    NONE = "none"


class UsageSource(StrEnum):
    """Where an answer says how many tokens it read, reused and wrote."""

    UNASKED = "unasked"
    """In the last chunk of a stream or the body of a plain answer, as `usage` or llama.cpp's `timings`, unasked."""

    INCLUDE_USAGE = "include_usage"
    """Streams tell only when asked by stream_options.include_usage; the core asks, and takes the extra chunk out again
    for a client that did not ask."""

    ABSENT = "absent"
    """Nowhere."""


class StreamEnd(StrEnum):
    """What proves that a stream is complete."""

    TRANSPORT = "transport"
    """The HTTP framing: a cut breaks the chunked encoding."""

    DONE = "done"
    """Only `data: [DONE]`: the connection's end frames the body, so a cut looks like an end."""


@dataclass(frozen=True, slots=True)
class Wire:
    """Facts about an engine's HTTP interface that the forward path needs. Data, not behaviour."""

    endpoints: frozenset[str]
    """The POST paths that clients may reach, e.g. /v1/chat/completions. Never a control path."""

    keep_alive: bool = True
    """False: one connection a request (HTTP/1.0 servers lose pooled requests)."""

    usage: UsageSource = UsageSource.UNASKED
    stream_end: StreamEnd = StreamEnd.TRANSPORT

    slot_field: str | None = None
    """Body field that pins a request to a slot the core has chosen (llama.cpp: id_slot); None: the engine chooses.
    A client's own value of that field is dropped."""

    session_header: str | None = None
    """Request header in which the engine takes the session's key, so that it can save by it; None: it has no use
    for one."""

    drain_on_abort: bool = False
    """True: when a client leaves, the answer is read to its end instead of closing the connection."""

    model: str | None = None
    """Name to put into a request's `model` field; None: the engine answers to the mesh-wide one, or does not care.
    An answer keeps whatever name the engine gives."""

    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """Request headers that the engine asks for, such as Authorization: the node's own, never a client's."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a backend listens."""

    host: str
    """A name, or an IP address without brackets."""

    port: int
    tls: bool = False
    base: str = ""
    """What stands before every path, e.g. "/gpu1" for a server behind a proxy. Without a trailing slash."""

    @property
    def url(self) -> str:
        """http://HOST:PORT, or https, and the base; without a trailing slash."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls else 'http'}://{host}:{self.port}{self.base}"


@dataclass(frozen=True, slots=True)
class Accelerator:
    """What is known of one card. None: not known."""

    index: int
    """Its host index, as in Spec.gpus."""

    name: str | None = None
    target: str | None = None
    """What code is built for, e.g. gfx906. AMD only."""

    memory_total: int | None = None
    """MiB. Of a chip that shares its memory with the processor: all of it."""


@dataclass(frozen=True, slots=True)
class Spec:
    """One backend as the operator wants it."""

    model: str
    """The mesh-wide name that the backend must answer to."""

    index: int
    """Which of the model's backends this is, from 0."""

    backends: int
    """How many backends the model has on this node."""

    path: Path | None
    context: int
    """Tokens per slot."""

    parallel: int
    """Slots."""

    host: str = "127.0.0.1"
    port: int = 0
    """Where to listen; 0 while options are checked and no port is known yet."""

    gpus: tuple[int, ...] = ()
    """Host indices of the cards of this backend; empty = CPU."""

    vendor: Vendor = Vendor.NONE
    cards: tuple[Accelerator, ...] = ()
    """The cards in `gpus`, in that order, as they were read last before the launch; empty: nothing is known of them."""

    node_backends: int = 0
    """How many backends all models of this node have together; 0: not known."""

    args: tuple[str, ...] = ()
    """The operator's arguments: a plugin appends them last, so that the operator wins."""

    env: Mapping[str, str] = field(default_factory=dict)
    """The operator's environment for the process. The core sets it, last; it is here because a setting of the engine
    may stand in it (llama-server reads LLAMA_ARG_*)."""

    cache_dir: Path | None = None
    """Folder, mode 0700, where this backend's engine writes and reads cache files; None: kv_share is off."""


@dataclass(frozen=True, slots=True)
class Launch:
    """The program to start. `env` is added to the clean environment that the core makes."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)


class Phase(StrEnum):
    """What a backend that is not ready yet is doing."""

    QUEUED = "queued"
    FETCHING = "fetching"
    LOADING = "loading"
    WARMING_UP = "warming up"


@dataclass(frozen=True, slots=True)
class Probe:
    """Is the engine ready? "Still loading" is a good probe with ready=False."""

    ready: bool
    phase: Phase = Phase.LOADING
    progress: float | None = None
    """0..1, or None when the engine does not say."""

    reason: str | None = None
    """Why it is not ready, in the engine's words."""


@dataclass(frozen=True, slots=True)
class SlotLoad:
    """One slot as the engine sees it."""

    id: int
    busy: bool
    tokens: int | None = None
    """Tokens that the slot's cache holds, where the engine says so."""


@dataclass(frozen=True, slots=True)
class Load:
    """What the engine is doing. An unknown figure is None, never zero."""

    slots: int
    busy: int | None
    """Slots at work, for whomever; None: the engine has no such figure, and the core knows its own requests only."""

    waiting: int | None = None
    context: int | None = None
    """Smallest context of any slot, in tokens."""

    each: tuple[SlotLoad, ...] = ()
    """Per slot, for engines that name their slots; else empty."""


class Engine(ABC):
    """One model's engine. One instance serves all backends of that model on this node.

    The constructor does no I/O; `async with` opens and closes what the instance needs (an HTTP client, say). All
    methods are called on the control loop, each under a deadline.
    """

    name: ClassVar[str]
    """Lowercase word that the configuration's `engine:` names, e.g. "acme"."""

    Options: ClassVar[type[PluginOptions]] = NoOptions
    wire: ClassVar[Wire]
    """Of every instance, unless the class also is a VariesWire."""

    startup_timeout: ClassVar[float] = 600.0
    """Seconds from launch to ready, unless the operator says otherwise."""

    stop_timeout: ClassVar[float] = 5.0
    """Seconds that the process has for its own end after SIGTERM. A second SIGTERM follows, and SIGKILL soon after."""

    def __init__(self, options: PluginOptions, context: Context) -> None:
        self.options = options
        self.context = context

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    @abstractmethod
    def launch(self, spec: Spec) -> Launch | None:
        """Say what to start for `spec`; None: there is nothing to start, the server runs already (see Attaches).

        Pure: no I/O beyond what `Prepares.prepare` has read before. Raises ConfigError when the options and the spec
        disagree, naming the key.
        """

    @abstractmethod
    async def probe(self, address: Address) -> Probe:
        """Ask whether the model at `address` is loaded and answers, by the engine's own rule.

        Raises EngineUnreachable when nothing answers there, and nothing else.
        """

    @abstractmethod
    async def load(self, spec: Spec, address: Address) -> Load:
        """Ask what the engine is doing. Raises EngineUnreachable, or EngineRefused rather than guess a figure."""

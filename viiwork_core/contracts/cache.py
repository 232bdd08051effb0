"""The cache transfer contract: how an engine's KV cache becomes a file and a file becomes an engine's cache.

It must fit an engine whose slots are addressed by number, one without slots that caches by prompt, and one that saves
whatever conversation is live. So a session is named by a SessionRef that carries what each of them needs, and the
file lies in the folder that the core gave at launch (Spec.cache_dir).

The engine's own file proves nothing: lengths, hashes, encryption and peers' signatures are the core's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

from viiwork_core.contracts.context import Context
from viiwork_core.contracts.engine import Address, Spec
from viiwork_core.contracts.options import PluginOptions


@dataclass(frozen=True, slots=True)
class SessionRef:
    """Names one session to an engine.

    Slot-addressed engines use `slot`, engines that cache by prompt use `key` (they saw it in Wire.session_header with
    each request), engines that save the live conversation use neither.
    """

    key: str
    """Keyed hash of the session, hex. Also a safe file name."""

    slot: int | None = None
    """The engine's slot number inside the reservation, range-checked by the core."""


@dataclass(frozen=True, slots=True)
class Saved:
    """A finished save: the file may be read now."""

    tokens: int
    bytes: int


class SegmentKind(StrEnum):
    """How a part of a cache file changes from one turn to the next."""

    OPAQUE = "opaque"
    """Anything may change."""

    ROWS = "rows"
    """A run of equal rows, one a token: later turns append rows and keep the earlier ones."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of a cache file. Segments follow each other without a gap, from byte 0 to the end."""

    offset: int
    length: int
    kind: SegmentKind


@dataclass(frozen=True, slots=True)
class CacheFile:
    """What a cache file says of itself, read without the engine."""

    tokens: int | None
    """How many tokens it holds; None when that cannot be read."""

    ids: tuple[int, ...] | None
    """Their ids; None when they cannot be read."""

    segments: tuple[Segment, ...]


@dataclass(frozen=True, slots=True)
class CacheLimits:
    """What the engine's restore cannot do, as data for the planner."""

    extends_only: bool = False
    """A restored cache may be used only by a prompt that extends all saved tokens."""

    saves_live: bool = False
    """A save takes whatever conversation is live: right only while the engine has one slot and it is reserved."""

    refuses_links: bool = False
    """A restore takes only a file with no other name: the core then copies it, where it would otherwise link it."""

    replaces_live: bool = False
    """A restore discards the live conversation without keeping it anywhere."""


class CacheTransfer(ABC):
    """Cache transfer for one engine. One instance per model, made with the engine's options.

    The constructor does no I/O; `async with` opens and closes. All methods are called on the control loop, each under
    a deadline, and `save` and `restore` only inside a reservation of the session's slot.
    """

    engine: ClassVar[str]
    """Name of the engine it serves."""

    limits: ClassVar[CacheLimits] = CacheLimits()

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
    async def fingerprint(self, spec: Spec, address: Address) -> Mapping[str, str]:
        """Everything that must be equal for a restore to be RIGHT, by name: digest of the model's bytes (through
        Context.digest), the file format's version, KV types, flash attention, rope, slots, what else the engine
        needs. Settings may stand in the engine's options, in Spec.args and in Spec.env; what only the running engine
        knows (its version) can be asked at `address`. Called once for each start of a backend, when it is ready; may
        take minutes the first time. Raises EngineRefused when it cannot be known: then nothing is shared."""

    @abstractmethod
    async def save(self, spec: Spec, address: Address, session: SessionRef, name: str) -> Saved:
        """Save the session to Spec.cache_dir / name. The file is whole when this returns.

        Raises EngineUnreachable, or EngineRefused when the engine says no or has nothing to save. Of the latter,
        CacheUnsupported is for an engine that never saves as it was started: the first one ends the sharing of the
        model's caches, until its configuration changes or the node starts anew.
        """

    @abstractmethod
    async def restore(self, spec: Spec, address: Address, session: SessionRef, name: str) -> int:
        """Load Spec.cache_dir / name and return how many tokens the engine says it holds of it.

        The file is intact and of an equal fingerprint. A count proves nothing yet: the core compares the next turn's
        cached tokens. Raises EngineUnreachable, or EngineRefused, and CacheUnsupported as `save` does.
        """

    @abstractmethod
    async def holds(self, spec: Spec, address: Address, session: SessionRef) -> int | None:
        """How many tokens the engine still holds for the session; None when it cannot say, 0 when it holds none."""

    @abstractmethod
    def read(self, path: Path) -> CacheFile:
        """Read what a cache file says of itself. Blocking; called in a thread.

        Raises CacheRefused for a file that is not one of this engine's or is cut short.
        """

    async def covers(self, spec: Spec, address: Address, file: CacheFile, path: str, body: bytes) -> int | None:
        """How many leading tokens of the prompt in `body` (a request to endpoint `path`) the file holds.

        None: the engine compares by itself when it uses a restored cache, or cannot say.
        """
        return None

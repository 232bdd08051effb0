"""What an open node offers to the web layer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from viiwork_core.errors import ViiworkError
from viiwork_core.kvshare.receiving import Carrier
from viiwork_core.mesh.alias_table import AliasWrite
from viiwork_core.mesh.report import CapacityReport
from viiwork_core.observe.events import EventLog
from viiwork_core.security.keys import ApiKey, KeyRing
from viiwork_core.web.access import Rules
from viiwork_core.web.catalog import ModelRecord
from viiwork_core.web.claims import Claims
from viiwork_core.web.greetings import Greetings
from viiwork_core.web.inference import Inference
from viiwork_core.web.prompts import Prompts
from viiwork_core.web.viewers import Viewers


class AliasNames(Protocol):
    """The names that the mesh knows models by."""

    def info(self, name: str) -> dict[str, Any]:
        """A name with its history and who has it. Raises NotFound."""
        ...

    def infos(self) -> dict[str, Any]:
        """All names that stand for something."""
        ...

    def page(self, after: str) -> bytes:
        """The part of the table that follows a name, as JSON."""
        ...

    def entry(self, name: str) -> tuple[AliasWrite, ...]:
        """A name's writes. Raises NotFound."""
        ...

    async def set(self, name: str, target: str, fallbacks: Sequence[str], *, force: bool) -> bool:
        """Whether that is news. Raises ViiworkError."""
        ...

    async def remove(self, name: str) -> None:
        """Raises ViiworkError."""
        ...

    async def revert(self, name: str) -> None:
        """Raises ViiworkError."""
        ...


class ApiKeys(Protocol):
    """The keys that count on a node, and those of the mesh."""

    ring: KeyRing

    def admit(self, key: ApiKey, model: str, alias: str | None) -> None:
        """Let a request through. Raises ModelForbidden, AllowanceSpent."""
        ...

    def infos(self) -> list[dict[str, Any]]:
        """All that count."""
        ...

    def info(self, name: str) -> dict[str, Any]:
        """One with who has it. Raises NotFound."""
        ...

    def page(self, after: str) -> bytes:
        """The part of the table that follows a name, as JSON."""
        ...

    async def create(self, key: ApiKey) -> bool:
        """Whether that is news. Raises ViiworkError."""
        ...

    async def revoke(self, name: str, *, opens: bool) -> None:
        """Raises ViiworkError."""
        ...


class KvLedger(Protocol):
    """The caches that move, as the operator sees them."""

    def overview(self) -> dict[str, Any]:
        """What is here, and each model's figures."""
        ...

    async def forget(self, name: str) -> dict[str, Any]:
        """Forget a session, by name or key, here and at all members. Raises ViiworkError."""
        ...

    async def told(self, turns: Mapping[str, int]) -> dict[str, Any]:
        """A member tells what to forget: keys with their turns. Raises ViiworkError."""
        ...

    def page(self) -> bytes:
        """What is forgotten, as JSON."""
        ...


class Drain(Protocol):
    """Taking no new work."""

    departure: Future[Literal["stop", "restart"]]
    """What is to become of this process, once that is so."""

    def begin(self, timeout_s: float, then: Literal["stop", "restart"] | None) -> dict[str, Any]:
        """Take none from now on. Raises InvalidRequest."""
        ...

    def end(self) -> dict[str, Any]:
        """Take requests again."""
        ...

    def told(self) -> dict[str, Any]:
        """How far it has come."""
        ...


class MeshOutlook(Protocol):
    """What this node shows of the whole mesh."""

    viewers: Viewers
    here: Viewers
    """Those who look at this node alone."""

    def fleet(self, model: str | None) -> dict[str, Any]:
        """Who serves all models, or the one that a name stands for, and with how much room."""
        ...

    async def cluster(self) -> dict[str, Any]:
        """The members."""
        ...

    def catalog(self, records: Sequence[ModelRecord], base: str) -> dict[str, Any] | None:
        """GET /api.json, of these models; `base`: this node's API as the client has reached it. None: there is none."""
        ...

    def hour(self) -> dict[str, Any]:
        """Samples of this node's last hour."""
        ...


@dataclass(frozen=True)
class Surface:
    """Callables and handlers, all for the data loop."""

    node: str
    """The node's name."""

    inference: Inference
    endpoints: Callable[[], frozenset[str]]
    """POST paths that `inference` takes now."""

    claims: Claims
    access: Rules
    """Who is let in, and which web pages may use the API."""

    capacity: Callable[[], CapacityReport]
    models: Callable[[], list[ModelRecord]]
    """What all lists of models are made from."""

    status: Callable[[], dict[str, Any]]
    health: Callable[[], tuple[int, dict[str, Any]]]
    """HTTP status and body of GET /health."""

    metrics: Callable[[], bytes]
    """The answer of GET /metrics."""

    why: Callable[[str, bool], Awaitable[dict[str, Any]]]
    """The account of a request, by its id; True: other members are asked too. Raises NotFound."""

    prompts: Prompts | None
    """What is kept of what clients asked; None: nothing."""

    events: EventLog
    park: Callable[[Sequence[str] | None, bool], Awaitable[dict[str, bool]]]
    """Takes models down (True) or up again, None: all. By name, whether that is news. Raises InvalidRequest."""

    drain: Drain
    take_replica: Callable[[str, Carrier], Awaitable[None]]
    """Receives a replica from the member of that name. Raises ViiworkError."""

    aliases: AliasNames
    keys: ApiKeys
    kv: KvLedger
    outlook: MeshOutlook
    greetings: Greetings
    refusal: Future[ViiworkError]
    """Why this process must end, once that is so."""

    leave: Callable[[], Awaitable[None]]
    """Tells the mesh that this node goes; what runs may finish."""

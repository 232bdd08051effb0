"""What an open node offers to the web layer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from viiwork_core.mesh.report import CapacityReport
from viiwork_core.observe.events import EventLog
from viiwork_core.web.catalog import ModelRecord
from viiwork_core.web.claims import Claims
from viiwork_core.web.inference import Inference


@dataclass(frozen=True)
class Surface:
    """Callables and handlers, all for the data loop."""

    node: str
    """The node's name."""

    inference: Inference
    endpoints: Callable[[], frozenset[str]]
    """POST paths that `inference` takes now."""

    claims: Claims
    capacity: Callable[[], CapacityReport]
    models: Callable[[], list[ModelRecord]]
    """What all lists of models are made from."""

    status: Callable[[], dict[str, Any]]
    health: Callable[[], tuple[int, dict[str, Any]]]
    """HTTP status and body of GET /health."""

    metrics: Callable[[], bytes]
    """The answer of GET /metrics."""

    events: EventLog
    park: Callable[[Sequence[str] | None, bool], Awaitable[dict[str, bool]]]
    """Takes models down (True) or up again, None: all. By name, whether that is news. Raises InvalidRequest."""

    take_replica: Callable[[AsyncIterator[bytes]], Awaitable[None]]
    """Receives a replica from a member. Raises ViiworkError."""

    leave: Callable[[], Awaitable[None]]
    """Tells the mesh that this node goes; what runs may finish."""

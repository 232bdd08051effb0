"""What an open node offers to the web layer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from viiwork_core.mesh.report import CapacityReport
from viiwork_core.web.claims import Claims
from viiwork_core.web.inference import Inference


@dataclass(frozen=True)
class Surface:
    """Callables and handlers, all for the data loop."""

    inference: Inference
    endpoints: frozenset[str]
    """POST paths that `inference` takes."""

    claims: Claims
    capacity: Callable[[], CapacityReport]
    models: Callable[[], list[dict[str, Any]]]
    """Entries of GET /v1/models."""

    status: Callable[[], dict[str, Any]]
    health: Callable[[], tuple[int, dict[str, Any]]]
    """HTTP status and body of GET /health."""

    take_replica: Callable[[AsyncIterator[bytes]], Awaitable[None]]
    """Receives a replica from a member. Raises ViiworkError."""

    leave: Callable[[], Awaitable[None]]
    """Tells the mesh that this node goes; what runs may finish."""

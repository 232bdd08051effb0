"""A run: one launch of a backend, and how it ended."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import anyio

from viiwork_core.contracts.engine import Address, Spec
from viiwork_core.engines.listener import Listener, taken
from viiwork_core.engines.process import Child, LineSink


@dataclass
class Run:
    """Lasts until `end`, or for as long as its supervisor."""

    spec: Spec
    address: Address
    loaded: Callable[[], None]
    """To be called when it has loaded its model or never will: another backend may load then. Again is harmless."""

    child: Child[LineSink] | None = None
    """None: the server runs already and is not ours."""

    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    reason: str = ""
    by_itself: bool = False
    hopeless: bool = False

    def end(self, reason: str, *, by_itself: bool = False, hopeless: bool = False) -> None:
        """The first reason counts. `by_itself`: nobody ended it. `hopeless`: another launch would end the same way."""
        if not self.reason:
            self.reason, self.by_itself, self.hopeless = reason, by_itself, hopeless
        self.scope.cancel()

    def without_port(self, found: Listener) -> str:
        """Why it cannot start: a stranger is on its port."""
        return f"{self.spec.model}/{self.spec.index} cannot start: {taken(self.spec.port, found)}"

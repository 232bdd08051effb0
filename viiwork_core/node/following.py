"""What must follow when the models of a running node change: the fleet, and the caches."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import structlog

from viiwork_core.engines.control import ControlLoop
from viiwork_core.engines.fleet import Fleet
from viiwork_core.kvshare.caches import Caches
from viiwork_core.node.background import Background
from viiwork_core.node.models import Changes, Models
from viiwork_core.registry.options import ResolvedModel

_log = structlog.get_logger("viiwork.node")


class Following:
    """Changes the models and lets the rest follow. On the data loop."""

    def __init__(
        self,
        models: Models,
        caches: Caches,
        fleet: Fleet,
        control: ControlLoop,
        background: Background,
        changed: Callable[[], Coroutine[Any, Any, None]],
    ) -> None:
        """`changed` runs in the background when the models are others, or are started again."""
        self._changed = changed
        self._models = models
        self._caches = caches
        self._fleet = fleet
        self._control = control
        self._background = background

    async def replace(self, resolved: Sequence[ResolvedModel]) -> Changes:
        """Serve these models from now on. Raises ViiworkError, and then nothing has changed."""
        changes = self._models.replace(resolved)
        self._background.start(self._changed())
        shared = self._models.shared
        self._caches.follow(shared, slotted=self._models.slotted)
        if shared and not self._caches.shares:
            _log.warning("kv_share begins with the next start of the node", models=tuple(shared))
        self._tell()
        return changes

    async def park(self, names: Sequence[str] | None, down: bool) -> dict[str, bool]:
        """Take models down or up again, None: all. By name, whether that is news. Raises InvalidRequest."""
        changes = self._models.park(names, parked=down)
        if any(changes.values()):
            changed = tuple(name for name, news in changes.items() if news)
            _log.info("models are taken down" if down else "models are started again", models=changed)
            self._tell()
            if not down:
                self._background.start(self._changed())
        return changes

    def _tell(self) -> None:
        """Not awaited, so that nobody who leaves in the middle keeps the fleet from hearing of it."""
        backends, parked = self._models.backends, self._models.parked
        self._background.start(self._control.call(lambda: self._fleet.apply(backends, parked)))

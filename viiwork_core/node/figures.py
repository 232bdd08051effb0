"""Current values for the metrics, read from the book, the router and the caches at each scrape."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from viiwork_core.clock import Clock
from viiwork_core.engines.slots import SlotBook
from viiwork_core.engines.states import BackendState
from viiwork_core.kvshare.caches import Caches
from viiwork_core.kvshare.planner import Warmth
from viiwork_core.kvshare.sending import SendCounts
from viiwork_core.mesh.status import MOST_LINKS
from viiwork_core.node.keyring import Keyring
from viiwork_core.node.models import Models
from viiwork_core.observe.metrics import ModelFigures, PeerFigures, Snapshot
from viiwork_core.proxy.budget import BodyBudget
from viiwork_core.routing.router import Router


@dataclass(frozen=True)
class Figures:
    """On the data loop."""

    models: Models
    book: SlotBook
    router: Router
    budget: BodyBudget
    keyring: Keyring
    caches: Callable[[], Caches | None]
    clock: Clock

    def snapshot(self) -> Snapshot:
        """A model without a healthy backend has 0 slots; one that is parked has no figures."""
        now, caches = self.clock.monotonic(), self.caches()
        moved = caches.tally if caches and caches.shares else None
        return Snapshot(
            models=[self._model(model.name) for model in self.models if model.name not in self.models.parked],
            backends=[(view.model, view.id, str(view.state)) for view in self.book.views()],
            states=[str(state) for state in BackendState],
            peers=[
                PeerFigures(
                    view.member.node,
                    now - view.asked_at,
                    [ModelFigures(one.name, one.slots, one.busy, one.queued) for one in view.report.models],
                )
                for view in self.router.reports()
            ],
            replicas=moved.results if moved else {},
            replica_bytes=moved.sizes if moved else {},
            replica_seconds=moved.times if moved else {},
            turns=caches.tally.turns if caches else {},
            imports=caches.imports if caches else {},
            body_bytes=self.budget.used,
            key_requests=self.keyring.spending.requests,
            key_tokens=self.keyring.spending.tokens,
        )

    def kv_share(self) -> dict[str, Any] | None:
        """What became of the caches that were sent, and of the turns after an import; None: no caches move here."""
        caches = self.caches()
        if caches is None or not caches.shares:
            return None
        sends, warmths = caches.sends, (*map(str, Warmth), "unknown")
        sent = _sent(sends) if sends else {}
        imports = [
            {"model": name, **{warmth: caches.imports[name, warmth] for warmth in warmths}}
            for name in sorted({name for name, _ in caches.imports})
        ]
        return {**sent, "imports": imports}

    def _model(self, name: str) -> ModelFigures:
        room = self.book.room(name)
        return ModelFigures(
            name, slots=room.slots if room else 0, busy=room.busy if room else 0, queued=self.router.queued(name)
        )


def _sent(sends: SendCounts) -> dict[str, Any]:
    """In all, and to each member: those that got the most, if there are more than another node would read."""
    links = sorted(sends.links.items(), key=lambda one: one[1].sent, reverse=True)[:MOST_LINKS]
    return {
        "sent": sends.sent,
        "failed": sends.failed,
        "dropped": sends.dropped,
        "sent_bytes": sends.bytes,
        "links": [
            {"node": name, "sent": one.sent, "failed": one.failed, "sent_bytes": one.bytes, "under_way": one.under_way}
            for name, one in sorted(links)
        ],
    }

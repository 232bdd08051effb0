"""What a node says of itself: capacity for peers, models for clients, health and figures. Read from the book."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from viiwork_core.clock import Clock
from viiwork_core.engines.gpus.gpu import Gpu
from viiwork_core.engines.slots import Room, SlotBook
from viiwork_core.engines.states import BackendState
from viiwork_core.mesh.member import Member, join_address
from viiwork_core.mesh.report import LONGEST_SILENCE, CapacityReport, KvReport, ModelReport
from viiwork_core.node.hosts import Hosts, hosts_of, record_of
from viiwork_core.node.keyring import Keyring
from viiwork_core.node.learning import NOTHING, Learned
from viiwork_core.node.ledger import Ledger
from viiwork_core.node.models import Models
from viiwork_core.node.naming import Naming
from viiwork_core.node.plans import Planned
from viiwork_core.observe.machine_figures import CardFigures, MachineFigures
from viiwork_core.observe.metrics import Totals
from viiwork_core.routing.router import Router
from viiwork_core.web.catalog import ModelRecord, unique


@dataclass(frozen=True)
class Views:
    """Snapshots, made when asked for. On the data loop."""

    node: str
    node_id: str
    version: str
    api_port: int
    models: Models
    book: SlotBook
    router: Router
    members: Callable[[], Sequence[Member]]
    clock: Clock
    started: float
    mesh: str
    """secured, open or none."""

    gpus: Callable[[], Sequence[Gpu] | None] = tuple
    """This machine's cards; None: not known."""

    learned: Callable[[str], Learned] = lambda _: NOTHING
    """What its answers taught of a model."""

    totals: Callable[[str], Totals] = lambda _: Totals()
    """What has been counted of a model."""

    address: Callable[[], str | None] = lambda: None
    """This node's address in the mesh, once it is known."""

    kv_share: Callable[[], dict[str, Any] | None] = lambda: None
    """What became of caches that move; None: none do."""

    draining: Callable[[], bool] = lambda: False
    """Whether this node takes no new work."""

    prompts: str = "off"
    """What is kept of what clients ask: activity.prompts."""

    listeners: Callable[[], list[dict[str, Any]]] = list
    """Plugins that are told of events, with their counts."""

    naming: Naming | None = None
    """The aliases."""

    keyring: Keyring | None = None
    """Which API keys count."""

    ledger: Ledger | None = None
    """What is known of the caches that move."""

    def capacity(self) -> CapacityReport:
        """This node's models and their room, without those that are parked."""
        reports = tuple(self._report(model) for model in self._serving())
        aliases = self.naming.digest if self.naming else msgspec.UNSET
        forgotten = self.ledger.digest if self.ledger else msgspec.UNSET
        drains = True if self.draining() else msgspec.UNSET
        keyring = self.keyring
        keys, spent = (keyring.digest, keyring.spending.report) if keyring else (msgspec.UNSET, msgspec.UNSET)
        return CapacityReport(self.node, self.node_id, self.version, reports, aliases, forgotten, drains, keys, spent)

    def _serving(self) -> list[Planned]:
        return [model for model in self.models if model.name not in self.models.parked]

    def room(self, model: Planned) -> Room:
        """What a model has here; nothing, before the book has heard of its backends."""
        return self.book.room(model.name) or Room(0, 0, 0, len(model.backends), 0, None)

    def _report(self, model: Planned) -> ModelReport:
        room, learned, drains = self.room(model), self.learned(model.name), self.draining()
        return ModelReport(
            name=model.name,
            engine=model.backends[0].engine.name,
            slots=room.busy if drains else room.slots,
            busy=room.busy,
            queued=self.router.queued(model.name),
            backends=len(model.backends),
            healthy_backends=0 if drains else room.healthy_backends,
            ctx=room.context or model.backends[0].spec.context,
            kv=None if drains else self._kv(model),
            dead_backends=self._dead(model),
            first_byte_s=model.first_byte_timeout and min(model.first_byte_timeout, LONGEST_SILENCE),
            score=learned.score,
            service_s=learned.service_s,
            import_ms_per_1k=learned.import_ms_per_1k,
            active=learned.active,
            heads=learned.heads,
        )

    def _dead(self, model: Planned) -> int:
        known = {backend.id for backend in model.backends}
        return sum(view.id in known and view.state is BackendState.DEAD for view in self.book.views())

    def _kv(self, model: Planned) -> KvReport | None:
        prints = {view.fingerprint for view in self.book.views() if view.model == model.name and view.fingerprint}
        # Backends that differ cannot be told apart by a sender, so their model takes no replica.
        if model.shared is None or len(prints) != 1:
            return None
        fingerprint = prints.pop()
        if self.ledger is not None and self.ledger.unmovable(model.name, fingerprint):
            return None
        return KvReport(group=model.shared.group, fingerprint=fingerprint)

    def records(self) -> list[ModelRecord]:
        """The models that clients may ask for: the one source of all lists of them."""
        models = unique([record_of(name, hosts, self.node) for name, hosts in self.hosts().items()])
        return unique([*models, *self.naming.records(models)]) if self.naming else models

    def hosts(self) -> Hosts:
        """Where each model of the mesh is served."""
        now = self.clock.monotonic()
        return hosts_of(self.capacity(), self.api(), self.router.reports(), self.router.fresh(now), now)

    def api(self) -> str | None:
        """ip:port of this node's API in the mesh, once it is known."""
        host = self.address()
        return None if host is None else join_address(host, self.api_port)

    def health(self) -> tuple[int, dict[str, Any]]:
        """503 only when models are configured, and not all parked, and none of their backends is healthy."""
        total = sum(len(model.backends) for model in self._serving())
        healthy = sum(view.state is BackendState.HEALTHY for view in self.book.views())
        well = healthy > 0 or total == 0
        body: dict[str, Any] = {
            "status": "ok" if well else "unhealthy",
            "version": self.version,
            "node": self.node,
            "uptime_seconds": int(self.age_s()),
            "backends_healthy": healthy,
            "backends_total": total,
            # Not unwell: what comes here is answered, by other members.
            **({"draining": True} if self.draining() else {}),
        }
        return (200 if well else 503), body

    def age_s(self) -> float:
        """Seconds since this process began."""
        return self.clock.monotonic() - self.started

    def figures(self) -> MachineFigures:
        """This node for the metrics."""
        return MachineFigures(
            node=self.node,
            version=self.version,
            mesh=self.mesh,
            uptime_s=round(self.age_s(), 3),
            members=len(self.members()),
            draining=self.draining(),
            cards=[
                CardFigures(
                    one.index, one.name or "", one.utilisation, one.memory_used, one.memory_total, power=one.power
                )
                for one in self.gpus() or ()
            ],
        )

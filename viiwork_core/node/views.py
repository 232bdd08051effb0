"""What a node says of itself: capacity for peers, status for people, models for clients. Read from the book."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from viiwork_core.clock import Clock
from viiwork_core.engines.slots import Room, SlotBook
from viiwork_core.engines.states import BackendState, BackendView
from viiwork_core.mesh.member import Member
from viiwork_core.mesh.report import CapacityReport, KvReport, ModelReport
from viiwork_core.node.plans import Planned
from viiwork_core.routing.router import Router


def _known(**fields: object) -> dict[str, Any]:
    """The fields without those that are unknown: None is not zero."""
    return {name: value for name, value in fields.items() if value is not None}


@dataclass(frozen=True)
class Views:
    """Snapshots, made when asked for. On the data loop."""

    node: str
    node_id: str
    version: str
    api_port: int
    models: Sequence[Planned]
    book: SlotBook
    router: Router
    members: Callable[[], Sequence[Member]]
    clock: Clock
    started: float
    mesh: str
    """secured, open or none."""

    def capacity(self) -> CapacityReport:
        """This node's models and their room."""
        reports = tuple(self._report(model) for model in self.models)
        return CapacityReport(node=self.node, node_id=self.node_id, ver=self.version, models=reports)

    def _room(self, model: Planned) -> Room:
        return self.book.room(model.name) or Room(0, 0, 0, len(model.backends), 0, None)

    def _report(self, model: Planned) -> ModelReport:
        room = self._room(model)
        return ModelReport(
            name=model.name,
            engine=model.backends[0].engine.name,
            slots=room.slots,
            busy=room.busy,
            queued=self.router.queued(model.name),
            backends=len(model.backends),
            healthy_backends=room.healthy_backends,
            ctx=room.context or model.backends[0].spec.context,
            kv=self._kv(model),
        )

    def _kv(self, model: Planned) -> KvReport | None:
        prints = {view.fingerprint for view in self.book.views() if view.model == model.name and view.fingerprint}
        # Backends that differ cannot be told apart by a sender, so their model takes no replica.
        if model.shared is None or len(prints) != 1:
            return None
        return KvReport(group=model.shared.group, fingerprint=prints.pop())

    def openai_models(self) -> list[dict[str, Any]]:
        """Entries of GET /v1/models, this node's before its peers', each name once."""
        local = {model.name: self._room(model).context or model.backends[0].spec.context for model in self.models}
        entries = [self._entry(name, "local", context) for name, context in local.items()]
        peers = self.router.contexts()
        entries += [self._entry(name, "peer", context) for name, context in peers.items() if name not in local]
        return sorted(entries, key=lambda entry: str(entry["id"]))

    @staticmethod
    def _entry(name: str, owner: str, context: int | None) -> dict[str, Any]:
        return _known(id=name, object="model", owned_by=owner, max_model_len=context, context_length=context)

    def health(self) -> tuple[int, dict[str, Any]]:
        """503 only when models are configured and none of their backends is healthy."""
        total = sum(len(model.backends) for model in self.models)
        healthy = sum(view.state is BackendState.HEALTHY for view in self.book.views())
        well = healthy > 0 or total == 0
        body = {
            "status": "ok" if well else "unhealthy",
            "version": self.version,
            "node": self.node,
            "uptime_seconds": self._uptime(),
            "backends_healthy": healthy,
            "backends_total": total,
        }
        return (200 if well else 503), body

    def _uptime(self) -> int:
        return int(self.clock.monotonic() - self.started)

    def status(self) -> dict[str, Any]:
        """This node for people and tools."""
        return {
            "node": self.node,
            "node_id": self.node_id,
            "ver": self.version,
            "api_port": self.api_port,
            "uptime_s": self._uptime(),
            "mesh": self.mesh,
            "members": [self._member(member) for member in self.members()],
            "models": [self._model(model) for model in self.models],
        }

    @staticmethod
    def _member(member: Member) -> dict[str, Any]:
        return {"node": member.node, "addr": member.host, "role": member.role, "suspect": member.suspect}

    def _model(self, model: Planned) -> dict[str, Any]:
        room = self._room(model)
        backends = [self._backend(view) for view in self.book.views() if view.model == model.name]
        return _known(
            name=model.name,
            engine=model.backends[0].engine.name,
            slots=room.slots,
            busy=room.busy,
            queued=self.router.queued(model.name),
            ctx=room.context,
            backends=backends,
        )

    def _backend(self, view: BackendView) -> dict[str, Any]:
        states = [str(state) for state in self.book.states(view.id)]
        return _known(
            id=view.id,
            status=str(view.state),
            phase=None if view.phase is None else str(view.phase),
            progress=view.progress,
            reason=view.reason,
            pid=view.pid,
            slots=view.slots,
            slot_states=states,
            respawns=view.respawns,
            fingerprint=view.fingerprint,
        )

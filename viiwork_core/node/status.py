"""What a node tells people and tools about itself: GET /v1/status."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from viiwork_core.engines.gpus.gpu import Gpu
from viiwork_core.engines.slots import SlotState
from viiwork_core.engines.states import BackendState, BackendView
from viiwork_core.mesh.member import Member
from viiwork_core.node import machine
from viiwork_core.node.plans import Planned
from viiwork_core.node.views import Views
from viiwork_core.routing.line import MOST_TOLD


def status_of(views: Views) -> dict[str, Any]:
    """The status now, for JSON. A figure that is not known is absent."""
    cards = views.gpus()
    total, used = machine.memory_mb()
    return _known(
        node=views.node,
        node_id=views.node_id,
        ver=views.version,
        addr=views.address(),
        api_port=views.api_port,
        uptime_s=int(views.age_s()),
        host_mem_total_mb=total,
        host_mem_used_mb=used,
        mesh=views.mesh,
        draining=True if views.draining() else None,
        prompts=None if views.prompts == "off" else views.prompts,
        members=[_member(member) for member in views.members()],
        gpus=None if cards is None else [_gpu(card) for card in cards],
        models=[_model(views, model) for model in views.models],
        queue=_waiting_for_others(views) or None,
        listeners=views.listeners() or None,
        kv_share=views.kv_share(),
    )


def _known(**fields: object) -> dict[str, Any]:
    """The fields without those that are unknown: None is not zero."""
    return {name: value for name, value in fields.items() if value is not None}


def _member(member: Member) -> dict[str, Any]:
    return {"node": member.node, "addr": member.host, "role": member.role, "suspect": member.suspect}


def _gpu(card: Gpu) -> dict[str, Any]:
    return _known(
        index=card.index,
        uuid=card.uuid,
        name=card.name,
        vendor=str(card.vendor),
        target=card.target,
        util=card.utilisation,
        vram_used_mb=card.memory_used,
        vram_total_mb=card.memory_total,
        power_w=card.power,
    )


def _waiting_for_others(views: Views) -> list[dict[str, Any]]:
    """Who waits here for models that only other nodes have."""
    own = {model.name for model in views.models}
    models = [name for name in views.router.waited_for() if name not in own]
    return [{"model": name, **one} for name in models for one in _queue(views, name)][:MOST_TOLD]


def _queue(views: Views, model: str) -> list[dict[str, Any]]:
    """Who waits here for a model, in order."""
    return [
        _known(
            request_id=one.request,
            position=one.position,
            waited_s=round(one.waited_s, 1),
            estimate_s=None if one.estimate_s is None else round(one.estimate_s, 1),
        )
        for one in views.router.waiting(model, views.clock.monotonic())
    ]


def _model(views: Views, model: Planned) -> dict[str, Any]:
    room, totals = views.room(model), views.totals(model.name)
    gpus = {backend.id: backend.spec.gpus for backend in model.backends}
    own = [view for view in views.book.views() if view.model == model.name]
    return _known(
        name=model.name,
        engine=model.backends[0].engine.name,
        # As far as one of its backends says.
        engine_version=next((view.version for view in own if view.version), None),
        slots=room.slots,
        busy=room.busy,
        queued=views.router.queued(model.name),
        queue=_queue(views, model.name) or None,
        ctx=room.context,
        requests_total=totals.requests,
        tokens_total=totals.tokens,
        prompt_tokens_total=totals.prompt,
        cached_tokens_total=totals.cached,
        kv_share=views.ledger.mark(model) if views.ledger else None,
        parked=True if model.name in views.models.parked else None,
        backends=[_backend(views, view, gpus.get(view.id, ())) for view in own],
    )


def _backend(views: Views, view: BackendView, gpus: Sequence[int]) -> dict[str, Any]:
    states = views.book.states(view.id)
    healthy = view.state is BackendState.HEALTHY
    return _known(
        id=view.id,
        gpus=list(gpus) or None,
        status=str(view.state),
        phase=None if view.phase is None else str(view.phase),
        progress=view.progress,
        reason=view.reason,
        pid=view.pid,
        rss_mb=None if view.pid is None else machine.resident_mb(view.pid),
        slots=view.slots,
        busy=sum(state is not SlotState.FREE for state in states),
        slot_states=[str(state) for state in states],
        respawns=view.respawns,
        uptime_s=int(views.clock.monotonic() - view.since) if healthy else None,
        fingerprint=view.fingerprint,
    )

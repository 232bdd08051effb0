"""Hosts: where each model of the mesh is served, as this node knows it. All views of the whole mesh come from here."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from viiwork_core.mesh.capacity import PeerView
from viiwork_core.mesh.links import api_of
from viiwork_core.mesh.report import CapacityReport, ModelReport
from viiwork_core.web.catalog import ModelRecord

MOST_MODELS: Final = 4096
"""Names that are listed: this node's own, and then those of members, by node."""


@dataclass(frozen=True, slots=True)
class HostView:
    """One host of one model."""

    node: str
    api: str | None
    """ip:port of its API; None: not known yet."""

    model: ModelReport
    age_s: float
    """How long ago that was asked; 0: this node."""

    fresh: bool
    """Whether it still counts."""

    @property
    def free(self) -> int:
        return max(0, self.model.slots - self.model.busy)


Hosts = Mapping[str, Sequence[HostView]]
"""By the model's name."""


def hosts_of(
    own: CapacityReport, api: str | None, peers: Iterable[PeerView], fresh: Collection[str], now: float
) -> dict[str, list[HostView]]:
    """The hosts of every model. `fresh`: the peers whose reports still count, by node."""
    found = {model.name: [HostView(own.node, api, model, 0.0, fresh=True)] for model in own.models}
    for view in sorted(peers, key=lambda one: one.member.node):
        node, age = view.member.node, max(0.0, now - view.asked_at)
        for model in view.report.models:
            if model.name in found or len(found) < MOST_MODELS:
                host = HostView(node, api_of(view.member), model, age, fresh=node in fresh)
                found.setdefault(model.name, []).append(host)
    return found


def served_context(hosts: Iterable[HostView]) -> int | None:
    """The tokens that a request may have wherever it goes: the smallest context of the fresh hosts that have slots.

    One that drains or starts has none, and says nothing about what is served.
    """
    return min((one.model.ctx for one in hosts if one.fresh and one.model.slots and one.model.ctx), default=None)


def record_of(name: str, hosts: Sequence[HostView], node: str) -> ModelRecord:
    """The model as clients see it from `node`."""
    own = next((one.model for one in hosts if one.node == node), None)
    context = served_context(hosts)
    if own is None:
        return ModelRecord(name, "peer", context)
    # Before anybody serves it, as configured: clients keep what they were told for minutes.
    return ModelRecord(name, "local", own.ctx if context is None else context)


def fleet_entry(name: str, hosts: Sequence[HostView]) -> dict[str, Any]:
    """A model in GET /v1/fleet/capacity."""
    fresh = [one for one in hosts if one.fresh]
    context = served_context(hosts)
    return {
        "name": name,
        "engine": (fresh or hosts)[0].model.engine,
        "slots": sum(one.model.slots for one in fresh),
        "busy": sum(one.model.busy for one in fresh),
        "free": sum(one.free for one in fresh),
        "queued": sum(one.model.queued for one in fresh),
        **({} if context is None else {"ctx": context}),
        "hosts": [_host(one) for one in hosts],
    }


def _host(one: HostView) -> dict[str, Any]:
    """A stale one is named, without figures: they are no longer true."""
    place = {"node": one.node} | ({} if one.api is None else {"api": one.api})
    age = {"age_ms": round(one.age_s * 1000)}
    if not one.fresh:
        return {**place, **age, "stale": True}
    context = {} if one.model.ctx is None else {"ctx": one.model.ctx}
    return {**place, "slots": one.model.slots, "busy": one.model.busy, "free": one.free, **context, **age}

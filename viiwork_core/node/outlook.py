"""Outlook: what this node shows of the whole mesh. Views of different nodes may differ for a few seconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from viiwork_core.clock import Clock
from viiwork_core.config.catalog import CatalogConfig
from viiwork_core.config.schema import Config
from viiwork_core.errors import ModelNotServed
from viiwork_core.mesh.capacity import PeerView
from viiwork_core.mesh.followers import Followers
from viiwork_core.mesh.links import api_of
from viiwork_core.mesh.member import Member
from viiwork_core.mesh.report import CapacityReport
from viiwork_core.mesh.status import MemberStatus, own_status
from viiwork_core.mesh.statuses import Statuses
from viiwork_core.node.background import Background
from viiwork_core.node.history import History, sample
from viiwork_core.node.hosts import fleet_entry
from viiwork_core.node.meshwork import Mesh
from viiwork_core.node.naming import Naming
from viiwork_core.node.status import status_of
from viiwork_core.node.views import Views
from viiwork_core.observe.events import EventLog
from viiwork_core.web.catalog import ModelRecord, opencode
from viiwork_core.web.viewers import Viewers

_MOVING: Final = frozenset(("age_ms", "rtt_ms", "clock_skew_s", "uptime_s", "rss_mb"))
"""Figures that change whether anything happens or not."""

_MEMORY_STEPS: Final = 64
_RSS_STEP: Final = 16
"""MiB of a process."""


def open_outlook(config: Config, views: Views, mesh: Mesh | None, log: EventLog, background: Background) -> Outlook:
    """The views of the mesh. Nothing is asked before somebody looks."""
    naming = views.naming
    assert naming is not None, "a node that is open has its names"
    statuses = Statuses(mesh.links, clock=views.clock) if mesh else None
    history = History(lambda: sample(views))
    background.serve(history.run())
    outlook = Outlook(views, naming, statuses, config.routing.stale_after, history, config.api.catalog)
    followers = Followers(mesh.membership, mesh.links, clock=views.clock) if mesh else None
    viewers = Viewers(
        log,
        followers,
        node=views.node,
        node_id=views.node_id,
        snapshots={"cluster": outlook.still, "aliases": naming.infos},
        refresh=outlook.refresh,
        spawn=background.serve,
    )
    outlook.viewers = viewers
    outlook.here = Viewers(
        log,
        None,
        node=views.node,
        node_id=views.node_id,
        snapshots={"status": outlook.still_here, "sample": history.newest},
        refresh=_nobody,
        spawn=background.serve,
    )
    return outlook


async def _nobody() -> None:
    """Of this node alone, nobody needs to be asked."""


@dataclass
class Outlook:
    """Snapshots, made when asked for. On the data loop."""

    views: Views
    naming: Naming
    statuses: Statuses | None
    """None: there is no mesh."""

    stale_after: float
    history: History
    listing: CatalogConfig
    """How the list of models for OpenCode calls this node."""

    viewers: Viewers = field(init=False)
    here: Viewers = field(init=False)
    """Those who look at this node alone."""

    def fleet(self, model: str | None) -> dict[str, Any]:
        """GET /v1/fleet/capacity: all models, or the one that is meant by a name. One that nobody has is no error."""
        hosts, alias = self.views.hosts(), None
        if model:
            meant = self._meant(model)
            alias = model if meant != model else None
            hosts = {name: found for name, found in hosts.items() if name == meant}
        return {
            "view": self.views.node,
            "ver": self.views.version,
            "stale_after_s": self.stale_after,
            **({} if alias is None else {"resolved_from": alias}),
            "models": [fleet_entry(name, hosts[name]) for name in sorted(hosts)],
        }

    def catalog(self, records: Sequence[ModelRecord], base: str) -> dict[str, Any] | None:
        """GET /api.json; None: it is off."""
        listing = self.listing
        if not listing.enabled:
            return None
        return opencode(records, listing.base_url or base, listing.provider_id, listing.provider_name)

    def _meant(self, name: str) -> str | None:
        try:
            return self.naming.resolve(name) or name
        except ModelNotServed:
            return None

    async def cluster(self) -> dict[str, Any]:
        """GET /v1/cluster, after asking the members for what is not known of late."""
        await self.refresh()
        return self._cluster()

    async def refresh(self) -> None:
        """Ask the members whose turn it is for their status."""
        if self.statuses is not None:
            await self.statuses.refresh(self.views.members())

    def still(self) -> dict[str, Any]:
        """The cluster without figures that change by themselves: two of these differ when something has happened."""
        found: dict[str, Any] = _without(self._cluster(), _MOVING)
        for member in found["members"]:
            _coarse(member["status"])
        return found

    def hour(self) -> dict[str, Any]:
        """GET /v1/status/history."""
        return self.history.told()

    def still_here(self) -> dict[str, Any]:
        """This node's status without such figures, and with its age in whole minutes."""
        status = status_of(self.views)
        found: dict[str, Any] = _without(status, _MOVING - {"rss_mb"})
        _coarse(found)
        for backend in (one for model in found["models"] for one in model["backends"] if "rss_mb" in one):
            backend["rss_mb"] = backend["rss_mb"] // _RSS_STEP * _RSS_STEP
        return {**found, "uptime_s": status["uptime_s"] // 60 * 60}

    def _cluster(self) -> dict[str, Any]:
        own = self.views.capacity()
        reports = {view.member.node_id: view for view in self.views.router.reports()}
        fresh = self.views.router.fresh(self.views.clock.monotonic())
        members = [self._own(own)]
        members += [
            self._member(member, reports.get(member.node_id), own, fresh=member.node in fresh)
            for member in self.views.members()
        ]
        return {
            "view": self.views.node,
            "mesh": self.views.mesh,
            "models": sorted(self.views.hosts()),
            "members": members,
        }

    def _own(self, report: CapacityReport) -> dict[str, Any]:
        return {
            "node": self.views.node,
            "node_id": self.views.node_id,
            "addr": self.views.api(),
            "role": "node",
            "state": "alive",
            "ver": self.views.version,
            "aliases_equal": True,
            **_drains(report),
            "models": _models(report),
            "status": _plain(own_status(status_of(self.views))),
        }

    def _member(self, member: Member, view: PeerView | None, own: CapacityReport, *, fresh: bool) -> dict[str, Any]:
        status = self.statuses.of(member) if self.statuses is not None else None
        return {
            "node": member.node,
            "node_id": member.node_id,
            "addr": api_of(member),
            "role": member.role,
            "state": "suspect" if member.suspect else "alive",
            **({} if view is None else _reported(view, own, self.views.clock, fresh=fresh)),
            "status": _plain(status),
        }


def _reported(view: PeerView, own: CapacityReport, clock: Clock, *, fresh: bool) -> dict[str, Any]:
    """What is known by a member's capacity report."""
    found: dict[str, Any] = {
        "ver": view.report.ver,
        "age_ms": round(max(0.0, clock.monotonic() - view.asked_at) * 1000),
        "rtt_ms": round(view.rtt_ms, 1),
    }
    if view.skew_s is not None:
        found["clock_skew_s"] = round(view.skew_s)
    if view.report.aliases is not msgspec.UNSET:
        found["aliases_equal"] = view.report.aliases == own.aliases
    if not fresh:
        # Its figures are no longer true.
        return {**found, "stale": True}
    return {**found, **_drains(view.report), "models": _models(view.report)}


def _drains(report: CapacityReport) -> dict[str, Any]:
    return {"draining": True} if report.draining is True else {}


def _models(report: CapacityReport) -> list[dict[str, Any]]:
    """Without the hashes of conversations and caches, which are for members only."""
    shown = ("name", "engine", "slots", "busy", "queued", "ctx", "backends", "healthy_backends")
    found = ({name: getattr(model, name) for name in shown} for model in report.models)
    return [{name: value for name, value in one.items() if value is not None} for one in found]


def _plain(status: MemberStatus | None) -> dict[str, Any] | None:
    return None if status is None else msgspec.to_builtins(status)


def _without(value: Any, names: frozenset[str]) -> Any:
    if isinstance(value, dict):
        return {name: _without(one, names) for name, one in value.items() if name not in names}
    return [_without(one, names) for one in value] if isinstance(value, list) else value


def _coarse(status: dict[str, Any] | None) -> None:
    """Memory in 64 steps: the last megabytes never stand still."""
    if status and (total := status.get("host_mem_total_mb")) and (used := status.get("host_mem_used_mb")) is not None:
        step = max(1, total // _MEMORY_STEPS)
        status["host_mem_used_mb"] = used // step * step

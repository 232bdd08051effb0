"""A peer as the router knows it: its last report, and what has become of the requests that went there."""

from __future__ import annotations

from dataclasses import dataclass, field

from viiwork_core.engines.penalty import Penalty
from viiwork_core.mesh.capacity import PeerView
from viiwork_core.mesh.report import CapacityReport, ModelReport
from viiwork_core.routing.ticket import There


@dataclass(slots=True)
class Peer:
    """One process of a node, and what this node has met with there. Pure."""

    view: PeerView
    silent_at: float = float("-inf")
    """When it was asked and did not answer, last."""

    refused: dict[str, float] = field(default_factory=dict)
    """Model -> when the peer last refused it."""

    penalties: dict[str, Penalty] = field(default_factory=dict)
    """By model, for those that it ever refused or failed."""

    forwards: list[There] = field(default_factory=list)
    """Ours, in flight there."""

    _read: CapacityReport | None = None
    _models: dict[str, ModelReport] = field(default_factory=dict)
    """By name, those of the report that was read last."""

    def model(self, name: str) -> ModelReport | None:
        if self._read is not self.view.report:
            self._read = self.view.report
            self._models = {model.name: model for model in self._read.models}
        return self._models.get(name)

    @property
    def draining(self) -> bool:
        """Whether it takes no new work, as it reports."""
        return self.view.report.draining is True

    def serves(self, model: str) -> bool:
        """Whether it has a healthy backend of the model."""
        about = self.model(model)
        return about is not None and about.healthy_backends > 0

    def passed_over(self, model: str, now: float) -> bool:
        """Whether it has just refused or failed the model."""
        penalty = self.penalties.get(model)
        return penalty is not None and penalty.active(now)

    def free(self, model: ModelReport, weight: int) -> int:
        """Free slots by the peer's report, less what the report cannot know of yet; 0: too few for `weight`."""
        asked_at = self.view.asked_at
        if self.refused.get(model.name, float("-inf")) >= asked_at or not model.healthy_backends:
            return 0
        free = model.slots - model.busy
        if self.forwards:
            free -= sum(one.weight for one in self.forwards if one.model == model.name and one.begun >= asked_at)
        # A heavy request takes a whole backend there, as it would here.
        return free if free >= max(1, min(weight, model.slots // model.healthy_backends)) else 0

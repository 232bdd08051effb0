"""What the fleet is asked to run."""

from __future__ import annotations

from dataclasses import dataclass

from viiwork_core.contracts.cache import CacheTransfer
from viiwork_core.contracts.engine import Address, Engine, Phase, Spec
from viiwork_core.engines.states import BackendState, BackendView


@dataclass(frozen=True)
class BackendPlan:
    """One backend to run. Backends of a model share `engine` and `cache`; `startup_timeout` is in seconds.

    A `spec.port` of 0 means that a free one is drawn at each launch. `spec.env` wins over what the engine sets.
    """

    spec: Spec
    engine: Engine
    cache: CacheTransfer | None
    startup_timeout: float
    address: Address | None = None
    """Where a server that runs already listens; None: at `spec.host` and the port."""

    @property
    def id(self) -> str:
        """MODEL/N"""
        return f"{self.spec.model}/{self.spec.index}"

    def queued(self, now: float) -> BackendView:
        """The backend before anything has been done for it, at the monotonic time `now`."""
        spec, engine = self.spec, self.engine.name
        return BackendView(
            self.id, spec.model, engine, BackendState.STARTING, 0, spec.parallel, Phase.QUEUED, since=now
        )

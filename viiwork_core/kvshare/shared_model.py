"""A model whose caches are shared, and what moving them needs of the node."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from viiwork_core.contracts.cache import CacheTransfer
from viiwork_core.contracts.engine import Spec
from viiwork_core.engines.slots import Reservation
from viiwork_core.errors import CacheRefused
from viiwork_core.mesh.member import Member

T = TypeVar("T")


class Control(Protocol):
    """Runs work on the control loop, where plugins live, and waits for it on the data loop."""

    async def call(self, make: Callable[[], Awaitable[T]]) -> T:
        """Await what `make` returns there. Cancelling the wait cancels the work."""
        ...


@dataclass(frozen=True)
class SharedModel:
    """A model whose caches are shared."""

    group: str
    min_tokens: int
    cache: CacheTransfer
    specs: Mapping[str, Spec]
    """By backend id."""

    def spec(self, reservation: Reservation) -> Spec:
        """The backend's spec. Raises CacheRefused: a reload may have taken it away while its last turn ran."""
        try:
            return self.specs[reservation.backend]
        except KeyError:
            raise CacheRefused(f"{reservation.backend} is not one of the model's backends any more") from None


Target = Callable[[str, str, str, str], Member | None]
"""(model, session, group, fingerprint) -> the member that the session would go to next, if its cache fits there."""


def delete_saves(models: Mapping[str, SharedModel], session: str) -> None:
    """Delete a session's saved files, of all turns. Blocking."""
    for folder in {folder_of(spec) for model in models.values() for spec in model.specs.values()}:
        for file in folder.glob(f"{session}.*.save"):
            file.unlink(missing_ok=True)


def folder_of(spec: Spec) -> Path:
    """Where the backend's engine writes and reads cache files."""
    assert spec.cache_dir is not None, "a shared model's backends have a cache folder"
    return spec.cache_dir

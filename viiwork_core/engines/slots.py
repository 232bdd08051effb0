"""The slot book: which slots of this node's backends are taken, and in what state.

Pure and without I/O; it lives on the data loop. The book is the authority: an engine's report is a hint that may close
a slot which somebody else uses, or confirm that an aborted one is idle, and a report that was asked for before the last
change of a slot changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from viiwork_core.clock import Clock
from viiwork_core.contracts.engine import Address, Load
from viiwork_core.engines.states import BackendState, BackendView

WEDGED_AFTER = 30.0
"""Seconds that an aborted slot may stay busy in the engine before it counts as wedged; llama-server frees one within
13 ms, and its slowest way out is the 30 s ping of a dead client."""


class SlotState(StrEnum):
    """A slot is free, or inside a reservation in one of the others."""

    FREE = "free"
    RESERVED = "reserved"
    RUNNING = "running"
    SAVING = "saving"
    RESTORING = "restoring"
    ABORTING = "aborting"
    """The client left and the engine has not said yet that it is idle. Belongs to no reservation any more."""

    WEDGED = "wedged"
    """As aborting, for too long."""


@dataclass(slots=True)
class _Slot:
    id: int
    state: SlotState = SlotState.FREE
    changed_at: float = float("-inf")
    used_at: float = float("-inf")
    foreign: bool = False
    """The engine is busy with a request that did not come from this node."""

    @property
    def open(self) -> bool:
        return self.state is SlotState.FREE and not self.foreign


@dataclass(slots=True)
class _Backend:
    view: BackendView
    slots: list[_Slot] = field(default_factory=list)
    unnamed_foreign: int = 0
    """Requests of others in an engine that does not name its slots."""

    @property
    def free(self) -> int:
        if self.view.state is not BackendState.HEALTHY:
            return 0
        return max(0, sum(slot.open for slot in self.slots) - self.unnamed_foreign)


@dataclass(slots=True, eq=False)
class Reservation:
    """One or more slots of one backend, held for one request until released."""

    backend: str
    model: str
    incarnation: int
    address: Address
    slots: tuple[int, ...]
    parallel: int
    """Slots that the backend has."""

    released: bool = False

    @property
    def slot(self) -> int | None:
        """The slot to pin to; None when the request takes several and the engine spreads it itself."""
        return self.slots[0] if len(self.slots) == 1 else None


@dataclass(frozen=True, slots=True)
class Room:
    """What a model has on this node, over its healthy backends."""

    slots: int
    busy: int
    free: int
    backends: int
    healthy_backends: int
    context: int | None


class SlotBook:
    """All backends of this node and the state of their slots."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._backends: dict[str, _Backend] = {}

    def see(self, view: BackendView) -> None:
        """Take in a supervisor's newest view. A new incarnation voids all reservations of the one before."""
        known = self._backends.get(view.id)
        if known is None or known.view.incarnation != view.incarnation:
            known = self._backends[view.id] = _Backend(view)
        known.view = view
        self._resize(known)
        if view.load is not None and view.load_asked_at is not None:
            self._hear(known, view.load, view.load_asked_at)

    @staticmethod
    def _resize(backend: _Backend) -> None:
        have, want = len(backend.slots), backend.view.slots
        backend.slots.extend(_Slot(number) for number in range(have, want))
        while len(backend.slots) > want and backend.slots[-1].open:
            backend.slots.pop()

    def _hear(self, backend: _Backend, load: Load, asked_at: float) -> None:
        busy = {slot.id for slot in load.each if slot.busy}
        ours = sum(slot.state not in (SlotState.FREE, SlotState.ABORTING, SlotState.WEDGED) for slot in backend.slots)
        for slot in backend.slots:
            if asked_at <= slot.changed_at:
                continue
            occupied = slot.id in busy if load.each else load.busy > ours
            if slot.state is SlotState.FREE:
                slot.foreign = bool(load.each) and occupied
            elif slot.state in (SlotState.ABORTING, SlotState.WEDGED):
                self._follow_abort(slot, occupied)
        settled = all(asked_at > slot.changed_at for slot in backend.slots)
        if settled and not load.each:
            taken = sum(slot.state is not SlotState.FREE for slot in backend.slots)
            backend.unnamed_foreign = max(0, load.busy - taken)

    def _follow_abort(self, slot: _Slot, occupied: bool) -> None:
        if not occupied:
            self._set(slot, SlotState.FREE)
        elif self._clock.monotonic() - slot.changed_at > WEDGED_AFTER:
            slot.state = SlotState.WEDGED

    def _set(self, slot: _Slot, state: SlotState) -> None:
        slot.state, slot.changed_at = state, self._clock.monotonic()

    def views(self) -> tuple[BackendView, ...]:
        """Every backend as last seen, in the order in which they appeared."""
        return tuple(backend.view for backend in self._backends.values())

    def view(self, backend_id: str) -> BackendView:
        """A backend as last seen. KeyError for one that was never seen."""
        return self._backends[backend_id].view

    def states(self, backend_id: str) -> tuple[SlotState, ...]:
        """The state of each slot of a backend."""
        return tuple(slot.state for slot in self._backends[backend_id].slots)

    def _of(self, model: str) -> Iterator[_Backend]:
        return (backend for backend in self._backends.values() if backend.view.model == model)

    def open_backends(self, model: str, weight: int = 1) -> tuple[tuple[BackendView, int], ...]:
        """The healthy backends of `model` with room for `weight` slots, each with its number of free ones."""
        return tuple((backend.view, backend.free) for backend in self._of(model) if backend.free >= weight)

    def room(self, model: str) -> Room | None:
        """Sums over the model's healthy backends; None: this node has no backend of that model."""
        known = list(self._of(model))
        if not known:
            return None
        healthy = [backend for backend in known if backend.view.state is BackendState.HEALTHY]
        slots, free = sum(len(b.slots) for b in healthy), sum(b.free for b in healthy)
        contexts = [b.view.context for b in healthy if b.view.context is not None]
        return Room(slots, slots - free, free, len(known), len(healthy), min(contexts, default=None))

    def reserve(self, backend_id: str, *, weight: int = 1, prefer: int | None = None) -> Reservation | None:
        """Take `weight` slots of a backend now, or none at all.

        The preferred slot if it is free, else the least recently used: the longer a conversation has been silent, the
        less its cache is worth.
        """
        backend = self._backends.get(backend_id)
        if backend is None or backend.free < weight or backend.view.address is None:
            return None
        choice = sorted((s for s in backend.slots if s.open), key=lambda s: (s.id != prefer, s.used_at, s.id))[:weight]
        for slot in choice:
            self._set(slot, SlotState.RESERVED)
        view, ids = backend.view, tuple(slot.id for slot in choice)
        return Reservation(view.id, view.model, view.incarnation, backend.view.address, ids, len(backend.slots))

    def _held(self, reservation: Reservation) -> Sequence[_Slot]:
        backend = self._backends.get(reservation.backend)
        if reservation.released or backend is None or backend.view.incarnation != reservation.incarnation:
            return ()
        return [slot for slot in backend.slots if slot.id in reservation.slots]

    def enter(self, reservation: Reservation, state: SlotState) -> None:
        """Say what a reservation's slots are doing: running, saving or restoring."""
        for slot in self._held(reservation):
            self._set(slot, state)

    def release(self, reservation: Reservation, *, aborted: bool = False) -> None:
        """Give a reservation back. The second call does nothing.

        `aborted`: the engine may still be at work, so its slots open only once it says that it is idle.
        """
        for slot in self._held(reservation):
            self._set(slot, SlotState.ABORTING if aborted else SlotState.FREE)
            slot.used_at = slot.changed_at
        reservation.released = True

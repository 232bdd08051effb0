"""The slot book: which slots of this node's backends are taken, and in what state.

Pure and without I/O; it lives on the data loop. The book is the authority: an engine's report is a hint that may close
a slot which somebody else uses, or confirm that an aborted one is idle, and a report that was asked for before the last
change of a slot changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from viiwork_core.clock import Clock
from viiwork_core.contracts.engine import Address, Load
from viiwork_core.engines.states import BackendState, BackendView

WEDGED_AFTER = 30.0
"""Seconds that an aborted slot may stay busy in the engine before it counts as wedged; llama-server frees one within
13 ms, and its slowest way out is the 30 s ping of a dead client."""

BLIND_AFTER = 10.0
"""Seconds after which an aborted slot opens all the same if the engine, healthy otherwise, never tells its load."""


class SlotState(StrEnum):
    """A slot is free, or inside a reservation in one of the others."""

    FREE = "free"
    RESERVED = "reserved"
    RUNNING = "running"
    SAVING = "saving"
    RESTORING = "restoring"
    ABORTING = "aborting"
    """A request ended early and the engine has not said yet that it is idle. Belongs to no reservation any more."""

    WEDGED = "wedged"
    """As aborting, for too long."""


_ABORTED = (SlotState.ABORTING, SlotState.WEDGED)


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

    @property
    def held(self) -> bool:
        """Whether a reservation has it."""
        return self.state is not SlotState.FREE and self.state not in _ABORTED


@dataclass(slots=True)
class _Backend:
    view: BackendView
    slots: list[_Slot] = field(default_factory=list)
    """Those that the engine has, by number, and beyond them those that a reservation still holds. Changed through the
    methods only, which keep the counts."""

    unnamed_foreign: int = 0
    """Requests of others in an engine that does not name its slots."""

    open: int = 0
    aborted: int = 0

    doubted_at: float | None = None
    """When it failed a request before its answer; None: not since the engine told its load."""

    @property
    def free(self) -> int:
        if self.view.state is not BackendState.HEALTHY or self.doubted_at is not None:
            return 0
        return max(0, self.open - self.unnamed_foreign)

    def set(self, slot: _Slot, state: SlotState, *, at: float | None = None) -> None:
        """`at`: when it changed; None: it only has another name now."""
        self._count(slot, -1)
        slot.state = state
        slot.changed_at = slot.changed_at if at is None else at
        self._count(slot, 1)

    def close(self, slot: _Slot, *, foreign: bool) -> None:
        """Whether the engine uses the slot for somebody else."""
        self._count(slot, -1)
        slot.foreign = foreign
        self._count(slot, 1)

    def _count(self, slot: _Slot, by: int) -> None:
        self.open += by * slot.open
        self.aborted += by * (slot.state in _ABORTED)

    def heard_of(self, slot: _Slot) -> bool:
        """Whether the engine has told its load since the slot changed."""
        return self.view.load_asked_at is not None and self.view.load_asked_at > slot.changed_at

    def resize(self) -> None:
        """Follow the engine's number of slots; one that it has no more stays only while somebody holds it."""
        want = self.view.slots
        if len(self.slots) == want and (not want or self.slots[-1].id == want - 1):
            return
        have = {slot.id for slot in self.slots}
        self.slots = [slot for slot in self.slots if slot.id < want or slot.held]
        self.slots += [_Slot(number) for number in range(want) if number not in have]
        self.slots.sort(key=lambda slot: slot.id)
        self.open = self.aborted = 0
        for slot in self.slots:
            self._count(slot, 1)


@dataclass(slots=True, eq=False)
class Reservation:
    """One or more slots of one backend, held for one request until released."""

    backend: str
    model: str
    incarnation: int
    address: Address
    slots: tuple[int, ...]
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
        if known is not None and view.incarnation < known.view.incarnation:
            return
        if known is None or known.view.incarnation != view.incarnation:
            known = self._backends[view.id] = _Backend(view)
        known.view = view
        known.resize()
        if view.load is None or view.load_asked_at is None:
            return
        if known.doubted_at is not None and view.load_asked_at > known.doubted_at:
            known.doubted_at = None
        if view.load.each:
            self._hear_each(known, view.load, view.load_asked_at)
        elif view.load.busy is not None:
            self._hear_count(known, view.load.busy, view.load_asked_at)
        else:
            self._hear_nothing(known)

    def _hear_each(self, backend: _Backend, load: Load, asked_at: float) -> None:
        """A report slot by slot. It says nothing about a slot that has changed since, or that it leaves out."""
        backend.unnamed_foreign = 0
        said = {slot.id: slot.busy for slot in load.each}
        for slot in backend.slots:
            if asked_at <= slot.changed_at or slot.id not in said:
                continue
            if slot.state is SlotState.FREE:
                backend.close(slot, foreign=said[slot.id])
            elif slot.state in _ABORTED:
                self._follow_abort(backend, slot, asked_at, busy=said[slot.id])

    def _hear_nothing(self, backend: _Backend) -> None:
        """An engine without figures: what runs is what this node has sent it and not taken back."""
        backend.unnamed_foreign = 0
        for slot in backend.slots:
            backend.close(slot, foreign=False)
            if slot.state in _ABORTED:
                backend.set(slot, SlotState.FREE, at=self._clock.monotonic())

    def _hear_count(self, backend: _Backend, busy: int, asked_at: float) -> None:
        """A bare number of busy slots. Which they are follows from the book, so it must have stood still since."""
        if any(asked_at <= slot.changed_at for slot in backend.slots):
            return
        aborted = sorted((s for s in backend.slots if s.state in _ABORTED), key=lambda s: (s.changed_at, s.id))
        others = busy - sum(slot.state is SlotState.RUNNING for slot in backend.slots)
        for behind, slot in enumerate(reversed(aborted), start=1):
            self._follow_abort(backend, slot, asked_at, busy=behind <= others)
        taken = sum(slot.state is not SlotState.FREE for slot in backend.slots)
        backend.unnamed_foreign = max(0, busy - taken)
        for slot in backend.slots:
            backend.close(slot, foreign=False)

    def _follow_abort(self, backend: _Backend, slot: _Slot, asked_at: float, *, busy: bool) -> None:
        if not busy:
            backend.set(slot, SlotState.FREE, at=self._clock.monotonic())
        elif asked_at - slot.changed_at > WEDGED_AFTER:
            backend.set(slot, SlotState.WEDGED)

    def doubt(self, backend_id: str) -> None:
        """The backend failed a request before its answer: nothing more goes there until the engine has told its load.

        Its supervisor learns of a dead engine a moment later than the request does, and a retry must not meet it
        again.
        """
        backend = self._backends.get(backend_id)
        if backend is not None:
            backend.doubted_at = self._clock.monotonic()

    def forget(self, backend_id: str) -> None:
        """The backend is gone for good; what is still reserved there is void."""
        self._backends.pop(backend_id, None)

    def idle(self, backend_id: str) -> bool:
        """Whether no reservation holds a slot of the backend."""
        backend = self._backends.get(backend_id)
        return backend is None or not any(slot.held for slot in backend.slots)

    def views(self) -> tuple[BackendView, ...]:
        """Every backend as last seen, in the order in which they appeared."""
        return tuple(backend.view for backend in self._backends.values())

    def view(self, backend_id: str) -> BackendView:
        """A backend as last seen. KeyError for one that was never seen."""
        return self._backends[backend_id].view

    def find(self, backend_id: str) -> BackendView | None:
        """A backend as last seen; None: it was never seen, or is forgotten."""
        backend = self._backends.get(backend_id)
        return None if backend is None else backend.view

    def states(self, backend_id: str) -> tuple[SlotState, ...]:
        """The state of each slot of a backend."""
        return tuple(slot.state for slot in self._backends[backend_id].slots)

    def _of(self, model: str) -> Iterator[_Backend]:
        for backend in self._backends.values():
            if backend.view.model == model:
                if backend.aborted or backend.doubted_at is not None:
                    self._open_unheard(backend)
                yield backend

    def _open_unheard(self, backend: _Backend) -> None:
        now = self._clock.monotonic()
        if backend.doubted_at is not None and backend.doubted_at < now - BLIND_AFTER:
            backend.doubted_at = None
        for slot in backend.slots:
            if slot.state in _ABORTED and slot.changed_at < now - BLIND_AFTER and not backend.heard_of(slot):
                backend.set(slot, SlotState.FREE, at=now)

    def open_backends(self, model: str, weight: int = 1) -> tuple[tuple[BackendView, int], ...]:
        """The healthy backends of `model` with room for `weight` slots, each with its number of free ones."""
        return tuple((backend.view, free) for backend in self._of(model) if (free := backend.free) >= weight)

    def room(self, model: str) -> Room | None:
        """Sums over the model's healthy backends; None: this node has no backend of that model, or none that stays."""
        known = [backend for backend in self._of(model) if not backend.view.leaving]
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
        now = self._clock.monotonic()
        for slot in choice:
            backend.set(slot, SlotState.RESERVED, at=now)
        view, ids = backend.view, tuple(slot.id for slot in choice)
        return Reservation(view.id, view.model, view.incarnation, backend.view.address, ids)

    def _held(self, reservation: Reservation) -> tuple[_Backend, list[_Slot]] | None:
        backend = self._backends.get(reservation.backend)
        if reservation.released or backend is None or backend.view.incarnation != reservation.incarnation:
            return None
        return backend, [slot for slot in backend.slots if slot.id in reservation.slots]

    def enter(self, reservation: Reservation, state: SlotState) -> None:
        """Say what a reservation's slots are doing: running, saving or restoring."""
        if held := self._held(reservation):
            backend, slots = held
            now = self._clock.monotonic()
            for slot in slots:
                backend.set(slot, state, at=now)

    def release(self, reservation: Reservation, *, aborted: bool = False) -> None:
        """Give a reservation back. The second call does nothing.

        `aborted`: the engine may still be at work, so its slots open only once it says that it is idle, or after
        BLIND_AFTER where it says nothing.
        """
        if held := self._held(reservation):
            backend, slots = held
            now = self._clock.monotonic()
            for slot in slots:
                backend.set(slot, SlotState.ABORTING if aborted else SlotState.FREE, at=now)
                slot.used_at = now
            backend.resize()
        reservation.released = True

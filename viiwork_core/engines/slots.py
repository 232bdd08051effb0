"""The slot book: which slots of this node's backends are taken, and in what state.

Pure and without I/O; it lives on the data loop. The book is the authority: an engine's report is a hint that may close
a slot which somebody else uses, or confirm that an aborted one is idle, and a report that was asked for before the last
change of a slot changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

import msgspec

from viiwork_core.clock import Clock
from viiwork_core.contracts.engine import Address, Load
from viiwork_core.engines.occupancy import ABORTED, Occupancy, Slot, SlotState
from viiwork_core.engines.states import BackendState, BackendView

__all__ = ["BLIND_AFTER", "WEDGED_AFTER", "Reservation", "Room", "SlotBook", "SlotState"]

WEDGED_AFTER = 30.0
"""Seconds that an aborted slot may stay busy in the engine before it counts as wedged; llama-server frees one within
13 ms, and its slowest way out is the 30 s ping of a dead client."""

LINGERS = 0.5
"""Seconds for which an engine may still call a slot busy whose answer is complete: llama-server sends the end of an
answer before it gives up the slot, and whoever asks in between would take that for somebody else's request."""

BLIND_AFTER = 10.0
"""Seconds after which an aborted slot opens all the same if the engine, healthy otherwise, never tells its load."""

FRESH = 3.0
"""Seconds for which a load is believed where it says that an engine does not work."""

_used_at = attrgetter("used_at")


class Reservation(msgspec.Struct, eq=False):
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


class Room(msgspec.Struct, frozen=True, gc=False):
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
        self._backends: dict[str, Occupancy] = {}

    def see(self, view: BackendView) -> None:
        """Take in a supervisor's newest view. A new incarnation voids all reservations of the one before."""
        known = self._backends.get(view.id)
        if known is not None and view.incarnation < known.view.incarnation:
            return
        if known is None or known.view.incarnation != view.incarnation:
            known = self._backends[view.id] = Occupancy(view)
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

    def _hear_each(self, backend: Occupancy, load: Load, asked_at: float) -> None:
        """A report slot by slot. It says nothing about a slot that has changed since, or that it leaves out."""
        backend.unnamed_foreign = 0
        said = {slot.id: slot.busy for slot in load.each}
        for slot in backend.slots:
            if asked_at <= slot.changed_at or slot.id not in said:
                continue
            if slot.state is SlotState.FREE:
                if not (said[slot.id] and asked_at - slot.changed_at < LINGERS):
                    backend.close(slot, foreign=said[slot.id])
            elif slot.state in ABORTED:
                self._follow_abort(backend, slot, asked_at, busy=said[slot.id])

    def _hear_nothing(self, backend: Occupancy) -> None:
        """An engine without figures: what runs is what this node has sent it and not taken back."""
        backend.unnamed_foreign = 0
        for slot in backend.slots:
            backend.close(slot, foreign=False)
            if slot.state in ABORTED:
                backend.set(slot, SlotState.FREE, at=self._clock.monotonic())

    def _hear_count(self, backend: Occupancy, busy: int, asked_at: float) -> None:
        """A bare number of busy slots. Which ones follows from the book, so the book must not have changed since."""
        if any(asked_at <= slot.changed_at for slot in backend.slots):
            return
        aborted = sorted((s for s in backend.slots if s.state in ABORTED), key=lambda s: (s.changed_at, s.id))
        others = busy - sum(slot.state is SlotState.RUNNING for slot in backend.slots)
        for behind, slot in enumerate(reversed(aborted), start=1):
            self._follow_abort(backend, slot, asked_at, busy=behind <= others)
        taken = sum(slot.state is not SlotState.FREE for slot in backend.slots)
        backend.unnamed_foreign = max(0, busy - taken)
        for slot in backend.slots:
            backend.close(slot, foreign=False)

    def _follow_abort(self, backend: Occupancy, slot: Slot, asked_at: float, *, busy: bool) -> None:
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

    def failed(self, reservation: Reservation, *, begun: float, silence: float) -> None:
        """A request that was sent at `begun` was refused or failed, after so many seconds of `silence`: the backend is
        passed over for a while, as long as the model has another one here."""
        if (backend := self._launch(reservation)) is not None:
            backend.penalty.failed(begun, self._clock.monotonic(), silence=silence)

    def served(self, reservation: Reservation, *, answered_at: float) -> None:
        """A request was answered, its first byte at `answered_at`."""
        if (backend := self._launch(reservation)) is not None:
            backend.penalty.served(answered_at)

    def idles(self, reservation: Reservation, *, pinned: bool) -> bool:
        """Whether the engine says that it does nothing for a request that it has: in a fresh report, asked for since.

        `pinned`: the request is on the reservation's own slots. Where the engine has no figures, it is not known to
        idle.
        """
        held = self._held(reservation)
        if held is None or held[0].view.load is None or not all(held[0].heard_of(slot) for slot in held[1]):
            return False
        load, asked_at = held[0].view.load, held[0].view.load_asked_at
        if asked_at is None or asked_at < self._clock.monotonic() - FRESH:
            return False
        if pinned and load.each:
            return not any(slot.busy for slot in load.each if slot.id in reservation.slots)
        return load.busy == 0

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

    def _of(self, model: str) -> list[Occupancy]:
        known = [backend for backend in self._backends.values() if backend.view.model == model]
        for backend in known:
            if backend.aborted or backend.doubted_at is not None:
                self._open_unheard(backend)
        return known

    def _open_unheard(self, backend: Occupancy) -> None:
        now = self._clock.monotonic()
        if backend.doubted_at is not None and backend.doubted_at < now - BLIND_AFTER:
            backend.doubted_at = None
        for slot in backend.slots:
            if slot.state in ABORTED and slot.changed_at < now - BLIND_AFTER and not backend.heard_of(slot):
                backend.set(slot, SlotState.FREE, at=now)

    def _passed_over(self, known: Sequence[Occupancy]) -> list[Occupancy]:
        """Those of a model's backends that get nothing now. None of them, where that would be all that serve."""
        now = self._clock.monotonic()
        penalised = [backend for backend in known if backend.penalty.until > now]
        spared = penalised and not any(one.serves for one in known if one not in penalised)
        return [] if spared else penalised

    def trusts(self, model: str) -> bool:
        """Whether a backend of the model serves that has not just refused or failed; False too where none serves."""
        now = self._clock.monotonic()
        return any(one.serves and not one.penalty.active(now) for one in self._of(model))

    def open_backends(self, model: str) -> tuple[tuple[BackendView, int], ...]:
        """The healthy backends of `model` with free slots, each with their number."""
        known = self._of(model)
        over = self._passed_over(known)
        return tuple([(one.view, free) for one in known if (free := one.free) and one not in over])

    def room(self, model: str) -> Room | None:
        """Sums over the model's healthy backends; None: this node has no backend of that model, or none that stays."""
        known = [backend for backend in self._of(model) if not backend.view.leaving]
        if not known:
            return None
        over = self._passed_over(known)
        slots, free, healthy, context = 0, 0, 0, None
        for backend in known:
            view = backend.view
            if view.state is BackendState.HEALTHY:
                slots, healthy = slots + len(backend.slots), healthy + 1
                free += 0 if backend in over else backend.free
                if view.context is not None and (context is None or view.context < context):
                    context = view.context
        return Room(slots, slots - free, free, len(known), healthy, context)

    def reserve(self, backend_id: str, *, weight: int = 1, prefer: int | None = None) -> Reservation | None:
        """Take `weight` slots of a backend now, or none at all.

        The preferred slot if it is free, else the least recently used: the longer a conversation has been silent, the
        less its cache is worth.
        """
        backend = self._backends.get(backend_id)
        if backend is None or backend.free < weight or backend.view.address is None:
            return None
        # Sorting keeps the order of equals, which is that of their numbers.
        free = [slot for slot in backend.slots if slot.state is SlotState.FREE and not slot.foreign]
        choice = sorted(free, key=_used_at)
        if prefer is not None:
            choice.sort(key=lambda slot: slot.id != prefer)
        del choice[weight:]
        now = self._clock.monotonic()
        for slot in choice:
            backend.set(slot, SlotState.RESERVED, at=now)
        backend.penalty.sent(now)
        view, ids = backend.view, tuple(slot.id for slot in choice)
        return Reservation(view.id, view.model, view.incarnation, backend.view.address, ids)

    def _held(self, reservation: Reservation) -> tuple[Occupancy, list[Slot]] | None:
        backend = self._launch(reservation)
        if reservation.released or backend is None:
            return None
        return backend, [slot for number in reservation.slots if (slot := backend.slot(number)) is not None]

    def _launch(self, reservation: Reservation) -> Occupancy | None:
        """The backend, if it is still the launch that was reserved from."""
        backend = self._backends.get(reservation.backend)
        return backend if backend is not None and backend.view.incarnation == reservation.incarnation else None

    def enter(self, reservation: Reservation, state: SlotState) -> None:
        """Say what a reservation's slots are doing: running, saving or restoring."""
        if held := self._held(reservation):
            backend, slots = held
            now = self._clock.monotonic()
            for slot in slots:
                backend.set(slot, state, at=now)

    def saving(self, reservation: Reservation) -> bool:
        """Whether the reservation is held for a save."""
        return self._is(reservation, SlotState.SAVING)

    def restoring(self, reservation: Reservation) -> bool:
        """Whether a cache is being put into it, or has been, and its request is not sent yet."""
        return self._is(reservation, SlotState.RESTORING)

    def _is(self, reservation: Reservation, state: SlotState) -> bool:
        held = self._held(reservation)
        return held is not None and any(slot.state is state for slot in held[1])

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

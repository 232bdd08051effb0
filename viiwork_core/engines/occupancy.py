"""What one backend's slots are doing, counted as it changes."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from viiwork_core.engines.penalty import Penalty
from viiwork_core.engines.states import BackendState, BackendView


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


ABORTED = (SlotState.ABORTING, SlotState.WEDGED)


@dataclass(slots=True)
class Slot:
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
        return self.state is not SlotState.FREE and self.state not in ABORTED


@dataclass(slots=True, eq=False)
class Occupancy:
    """One backend: its slots, and what is held against it. What a report is worth is for the book to say."""

    view: BackendView
    slots: list[Slot] = field(default_factory=list)
    """Those that the engine has, by number, and beyond them those that a reservation still holds. Changed through the
    methods only, which keep the counts."""

    unnamed_foreign: int = 0
    """Requests of others in an engine that does not name its slots."""

    open: int = 0
    aborted: int = 0

    doubted_at: float | None = None
    """When it failed a request before its answer; None: not since the engine told its load."""

    penalty: Penalty = field(default_factory=Penalty)

    @property
    def serves(self) -> bool:
        """Whether requests can run on it, at once or when others have ended."""
        well = self.view.state is BackendState.HEALTHY and self.doubted_at is None
        return well and (self.open > 0 or any(slot.held for slot in self.slots))

    @property
    def free(self) -> int:
        if self.view.state is not BackendState.HEALTHY or self.doubted_at is not None:
            return 0
        return max(0, self.open - self.unnamed_foreign)

    def set(self, slot: Slot, state: SlotState, *, at: float | None = None) -> None:
        """`at`: when it changed; None: it only has another name now."""
        self._count(slot, -1)
        slot.state = state
        slot.changed_at = slot.changed_at if at is None else at
        self._count(slot, 1)

    def close(self, slot: Slot, *, foreign: bool) -> None:
        """Whether the engine uses the slot for somebody else."""
        self._count(slot, -1)
        slot.foreign = foreign
        self._count(slot, 1)

    def _count(self, slot: Slot, by: int) -> None:
        self.open += by * slot.open
        self.aborted += by * (slot.state in ABORTED)

    def slot(self, number: int) -> Slot | None:
        """A slot by its number, which is its place as well unless the engine has fewer by now."""
        slots = self.slots
        if number < len(slots) and slots[number].id == number:
            return slots[number]
        return next((slot for slot in slots if slot.id == number), None)

    def heard_of(self, slot: Slot) -> bool:
        """Whether the engine has told its load since the slot changed."""
        return self.view.load_asked_at is not None and self.view.load_asked_at > slot.changed_at

    def resize(self) -> None:
        """Follow the engine's number of slots; one that it has no more stays only while somebody holds it."""
        want = self.view.slots
        if len(self.slots) == want and (not want or self.slots[-1].id == want - 1):
            return
        have = {slot.id for slot in self.slots}
        self.slots = [slot for slot in self.slots if slot.id < want or slot.held]
        self.slots += [Slot(number) for number in range(want) if number not in have]
        self.slots.sort(key=lambda slot: slot.id)
        self.open = self.aborted = 0
        for slot in self.slots:
            self._count(slot, 1)

"""Exports: a turn's cache is saved inside its reservation, and handed to the sender.

Nothing here ever fails a turn.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec
import structlog

from viiwork_core.clock import Clock
from viiwork_core.engines.slots import Reservation, SlotBook, SlotState
from viiwork_core.errors import ViiworkError
from viiwork_core.kvshare.deliveries import Deliveries
from viiwork_core.kvshare.moving import Moving, deleted
from viiwork_core.kvshare.planner import Export, Skip, plan_save, save_deadline
from viiwork_core.kvshare.promises import Promises
from viiwork_core.kvshare.sealing import ReplicaLabel
from viiwork_core.kvshare.sending import Save, Sender
from viiwork_core.kvshare.shared_model import Control, SharedModel, Target
from viiwork_core.kvshare.tally import Tally
from viiwork_core.kvshare.turns import Turn, Usage
from viiwork_core.mesh.member import Member

_log = structlog.get_logger("viiwork.kv")

Place = tuple[str, int, int | None]
"""Backend, incarnation, and slot; None: its engine has none."""


@dataclass
class Exports:
    """On the data loop; engines are spoken to on the control loop."""

    book: SlotBook
    moving: Moving
    sender: Sender[Member]
    control: Control
    target: Target
    clock: Clock
    promises: Promises
    tally: Tally
    deliveries: Deliveries
    place: Callable[[Reservation], Place]
    read_s: Callable[[str, int], float | None]
    """What reading so many tokens takes of a model here; None: not measured."""

    buried: Callable[[str], int | None]
    """The turn up to which a session is forgotten."""

    def __post_init__(self) -> None:
        self._overtaken: set[Reservation] = set()
        self._saving: set[tuple[str, int, int | str]] = set()
        """What engines are saving now; a turn that overtakes a save does not end it."""

    def overtaken(self, turn: Turn) -> None:
        """The next turn has come before this one's cache was saved: what is saved by then is dropped."""
        if self.book.saving(turn.reservation):
            self._overtaken.add(turn.reservation)

    async def after(self, shared: SharedModel, turn: Turn, usage: Usage, number: int) -> None:
        """Save and send a turn that has just ended, if that pays."""
        model, fingerprint = turn.reservation.model, self.fingerprint(turn.reservation.backend)
        decision, read_s = self._plan(shared, turn, usage, fingerprint)
        if isinstance(decision, Skip):
            _log.debug("kv save skipped", model=model, session=turn.session, reason=decision.reason)
            return
        assert fingerprint is not None, "plan_save exports nothing without one"
        assert usage.total is not None, "nor without a count"
        whose = {"model": model, "group": shared.group, "fingerprint": fingerprint, "session": turn.session}
        label = ReplicaLabel(**whose, turn=number, tokens=usage.total)
        await self.save(shared, turn, usage, label, decision.target, read_s)

    async def save(
        self,
        shared: SharedModel,
        turn: Turn,
        usage: Usage,
        label: ReplicaLabel,
        target: Member,
        read_s: float | None = None,
    ) -> str | None:
        """Save a session and hand it to the sender. Why it came to nothing; None: it is on its way.

        `label`: what it is; its tokens become those of the file. `read_s`: seconds that reading the prompt anew would
        take, after which the save is given up; None: not known.
        """
        self.book.enter(turn.reservation, SlotState.SAVING)
        where, model = self._where(turn), label.model
        self._saving.add(where)
        within_s, began = save_deadline(read_s), self.clock.monotonic()
        try:
            saved = await self.control.call(lambda: self.moving.save(shared, turn, usage, label.turn, within_s))
        except ViiworkError as error:
            self.promises.failed(model, label.fingerprint, error)
            _log.warning("kv save failed", model=model, session=turn.session, reason=error.message)
            return error.message
        finally:
            overtaken = turn.reservation in self._overtaken
            self._overtaken.discard(turn.reservation)
            self._saving.discard(where)
        self.tally.saved(model, self.clock.monotonic() - began, saved.bytes, saved.tokens)
        forgotten = label.turn <= (self.buried(turn.session) or 0)
        if overtaken or forgotten:
            await deleted(saved.path)
            reason = "the session was forgotten" if forgotten else "its next turn has come"
            _log.info("kv save overtaken", model=model, session=turn.session, turn=label.turn, reason=reason)
            return reason
        label = msgspec.structs.replace(label, tokens=saved.tokens)
        self.send(Save(saved.path, label, target, saved.bytes))
        return None

    def send(self, save: Save[Member]) -> None:
        """Hand a file to the sender, whose it is from now on."""
        self.deliveries.offered(save)
        self.sender.offer(save)

    def fingerprint(self, backend: str) -> str | None:
        """Of a backend as it is now; None: it has none."""
        view = self.book.find(backend)
        return view.fingerprint if view else None

    def _where(self, turn: Turn) -> tuple[str, int, int | str]:
        """What an action of an engine is about: a slot, or where there are none a session."""
        backend, incarnation, slot = self.place(turn.reservation)
        return backend, incarnation, turn.session if slot is None else slot

    def _plan(
        self, shared: SharedModel, turn: Turn, usage: Usage, fingerprint: str | None
    ) -> tuple[Export[Member] | Skip, float | None]:
        """Whether to save, and the seconds that reading the prompt anew would take; None: not known."""
        model = turn.reservation.model
        if why := self.promises.off(model, fingerprint):
            return Skip(why), None
        # An engine asked for two at a time may answer neither.
        if self._where(turn) in self._saving:
            return Skip("the save that this turn has overtaken is not over yet"), None
        target = self.target(model, turn.session, shared.group, fingerprint) if fingerprint else None
        read_s = None if usage.total is None else self.read_s(model, usage.total)
        gain_s = None if read_s is None else read_s * self.promises.chance(model)
        decision = plan_save(
            tokens=usage.total,
            min_tokens=shared.min_tokens,
            fingerprint=fingerprint,
            target=target,
            gain_s=gain_s,
            stall_s=None if usage.total is None else self.tally.stall_s(model, usage.total),
        )
        return decision, read_s

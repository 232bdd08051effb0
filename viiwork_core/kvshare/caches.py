"""What happens to a session's cache around a turn: import before it, save and send after it.

Nothing here ever fails a turn. The worst is a cold one, with a line in the log that says why.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

import anyio.to_thread
import structlog

from viiwork_core.clock import Clock
from viiwork_core.contracts.policy import Score
from viiwork_core.engines.slots import Reservation, SlotBook, SlotState
from viiwork_core.engines.states import BackendView
from viiwork_core.errors import ReplicaGone, ViiworkError
from viiwork_core.kvshare.deliveries import Deliveries
from viiwork_core.kvshare.exports import Exports
from viiwork_core.kvshare.handover import Handover
from viiwork_core.kvshare.holdings import Held, Holdings
from viiwork_core.kvshare.intake import Intake
from viiwork_core.kvshare.moving import Moving
from viiwork_core.kvshare.planner import Import, Skip, import_guess, plan_import, restore_deadline, unread
from viiwork_core.kvshare.promises import Promises
from viiwork_core.kvshare.receiving import Carrier
from viiwork_core.kvshare.replicas import Replica, ReplicaStore
from viiwork_core.kvshare.sending import SendCounts, Sender
from viiwork_core.kvshare.shared_model import Control, SharedModel, Target, delete_saves
from viiwork_core.kvshare.tally import Tally
from viiwork_core.kvshare.turns import Turn, Usage
from viiwork_core.mesh.member import Member

__all__ = ["Caches", "Control", "SharedModel", "Target"]

_log = structlog.get_logger("viiwork.kv")


class Caches:
    """The caches of this node's sessions. On the data loop; engines are spoken to on the control loop."""

    def __init__(
        self,
        models: Mapping[str, SharedModel],
        *,
        slotted: Mapping[str, bool],
        book: SlotBook,
        store: ReplicaStore | None,
        sender: Sender[Member] | None,
        control: Control,
        target: Target,
        clock: Clock,
        score: Callable[[str], Score | None] = lambda _: None,
        buried: Callable[[str], int | None] = lambda _: None,
        tally: Tally | None = None,
        deliveries: Deliveries | None = None,
    ) -> None:
        """`slotted`: whether a model's engine names its slots. No store or sender: nothing is shared.

        `score`: how fast a model reads prompts here. `buried`: the turn up to which a session is forgotten.
        """
        self._models: Mapping[str, SharedModel] = {}
        self._slotted: dict[str, bool] = {}
        self._book = book
        self._store = store
        self._sender = sender
        self._control = control
        self._clock = clock
        self._score = score
        self._buried = buried
        self._holdings = Holdings()
        self._moving = Moving(clock)
        self.tally = tally or Tally(clock)
        self._promises = Promises(self.tally)
        self._exports = self._made_exports(target, deliveries or Deliveries())
        sent = sender.sent if sender else lambda _: None
        self._intake = Intake(book, store, self.tally, self.unmovable, buried, sent)
        self.follow(models, slotted=slotted)

    def _made_exports(self, target: Target, deliveries: Deliveries) -> Exports | None:
        """None: nothing is sent from here."""
        if self._sender is None:
            return None
        return Exports(
            book=self._book,
            moving=self._moving,
            sender=self._sender,
            control=self._control,
            target=target,
            clock=self._clock,
            promises=self._promises,
            tally=self.tally,
            deliveries=deliveries,
            place=self._place,
            read_s=self._read_s,
            buried=self._buried,
        )

    def handover(self) -> Handover:
        """What moves all sessions to other members, once this node takes no new work."""
        return Handover(
            models=self._models,
            slotted=self._slotted,
            book=self._book,
            holdings=self._holdings,
            store=self._store,
            replicas=self.replicas,
            exports=self._exports,
        )

    def follow(self, models: Mapping[str, SharedModel], *, slotted: Mapping[str, bool]) -> None:
        """The models are these from now on. Turns of one that is gone end as they began."""
        for name, model in models.items():
            if (known := self._models.get(name)) is not None and known.cache is not model.cache:
                self._promises.follow(name)
        self._moving.follow(models)
        self._models = models
        self._slotted.update(slotted)

    @property
    def imports(self) -> Counter[tuple[str, str]]:
        """(model, warmth or "unknown") -> turns that followed an import."""
        return self.tally.warmths

    @property
    def sends(self) -> SendCounts | None:
        """What has been sent; None: this node sends no caches."""
        return self._sender.counts if self._sender else None

    @property
    def shares(self) -> bool:
        """Whether caches move at all here."""
        return self._store is not None

    @property
    def used_bytes(self) -> int:
        """Of the replicas that lie here."""
        return self._store.used if self._store else 0

    def replicas(self) -> list[Replica]:
        """The replicas that lie here."""
        return self._intake.replicas()

    def found(self, keys: Iterable[tuple[str, str]]) -> None:
        """(model, session) of replicas that an earlier run of the node has left."""
        self._intake.found(keys)

    @property
    def holdings(self) -> Holdings:
        """What the engines are believed to hold."""
        return self._holdings

    def unmovable(self, model: str, fingerprint: str | None) -> str | None:
        """Why the model's caches are not moved any more; None: they are."""
        return self._promises.off(model, fingerprint)

    def held(self, view: BackendView, session: str) -> tuple[int | None, int] | None:
        """The slot (None: the engine has none) where a backend holds a session, and how many tokens."""
        found = self._holdings.find(view.id, view.incarnation, session)
        return (found[0], found[1].tokens) if found else None

    def replica_tokens(self, model: str, session: str) -> int | None:
        """Tokens of a session's replica that lies here; None: there is none."""
        replica = self._store.find(model, session) if self._store else None
        return replica.header.tokens if replica else None

    def turn_of(self, session: str) -> int:
        """The newest turn of a session that this node knows, 0 for none."""
        return max(self._holdings.turn_of(session), self._buried(session) or 0)

    def saw(self, session: str, turn: int) -> None:
        """Another node knows of this turn."""
        self._holdings.saw(session, turn)

    async def forget(self, session: str) -> int:
        """Drop all that this node keeps of a session. Returns how many replicas were dropped.

        What an engine has in its own memory stays there until that is used for something else, and is not looked for.
        """
        turn = self.turn_of(session)
        self._holdings.forget(session)
        self._promises.forget(session)
        # The counter stays: a later turn must not look like one that is forgotten.
        self._holdings.saw(session, turn)
        if self._store is None:
            return 0
        found = sum(self._store.find(model, session) is not None for model in self._models)
        self._store.partials.forget(session)
        if self._sender is not None:
            self._sender.forget(session)
        await anyio.to_thread.run_sync(self._store.forget, session)
        await anyio.to_thread.run_sync(delete_saves, self._models, session)
        return found

    def _place(self, reservation: Reservation) -> tuple[str, int, int | None]:
        slot = reservation.slot if self._slotted[reservation.model] else None
        return reservation.backend, reservation.incarnation, slot

    def occupy(self, reservation: Reservation, session: str | None) -> None:
        """A request begins to run: what its slots held of other sessions is as good as gone.

        What a slot holds of the same session stays noted, also when the turn breaks off: engines keep the prefix.
        """
        if not self._slotted[reservation.model]:
            return
        for slot in reservation.slots:
            held = self._holdings.at(reservation.backend, reservation.incarnation, slot)
            if held is not None and held.session != session:
                self._holdings.clear(reservation.backend, reservation.incarnation, slot)

    # Before a turn

    async def before(self, turn: Turn) -> None:
        """Import the session's replica into the reserved slot, if that pays.

        One that is replaced after the decision is left for the newer one, once.
        """
        try:
            await self._before(turn)
        except ReplicaGone:
            await self._before(turn, last=True)

    async def _before(self, turn: Turn, *, last: bool = False) -> None:
        """Raises ReplicaGone, unless it is the `last` try, when a newer one has come meanwhile."""
        model = turn.reservation.model
        shared, replica = self._models.get(model), self._store.find(model, turn.session) if self._store else None
        if shared is None or replica is None:
            return
        # A restarted node finds replicas that it has not seen arrive, and must not count on from before them.
        self._holdings.saw(turn.session, replica.header.turn)
        decision, read_s = await self._decide(shared, turn, replica)
        if isinstance(decision, Skip):
            _log.info("kv import skipped", model=model, session=turn.session, reason=decision.reason)
            return
        self._book.enter(turn.reservation, SlotState.RESTORING)
        deadline = restore_deadline(replica.header.length, read_s)
        await self._import(shared, turn, decision.replica, deadline, last=last)

    async def _import(self, shared: SharedModel, turn: Turn, replica: Replica, within_s: float, *, last: bool) -> None:
        assert self._store is not None, "the replica lies in it"
        model, header, store, began = turn.reservation.model, replica.header, self._store, self._clock.monotonic()
        told = {"model": model, "session": turn.session, "turn": header.turn, "bytes": header.length}
        try:
            tokens = await self._control.call(lambda: self._moving.restore(shared, turn, replica, store, within_s))
        except ViiworkError as error:
            if isinstance(error, ReplicaGone) and not last and store.find(model, turn.session) is not None:
                raise  # nothing was restored yet
            self._promises.failed(model, header.fingerprint, error)
            # A failed restore empties the slot, so what it held is gone either way.
            self._holdings.clear(*self._place(turn.reservation), turn.session)
            took = self._clock.monotonic() - began
            self.tally.import_failed(model, took, header.length, header.tokens, late=took >= within_s)
            _log.warning("kv import failed", reason=error.message, seconds=round(took, 3), **told)
            return
        took = self._clock.monotonic() - began
        self.tally.imported(model, took, header.length, header.tokens)
        self._promises.made(turn.reservation, tokens, header.fingerprint)
        self._holdings.put(*self._place(turn.reservation), Held(turn.session, header.turn, tokens))
        reason = "the newest turn known here ran on another host"
        _log.info("kv imported", tokens=tokens, seconds=round(took, 3), reason=reason, **told)

    async def _decide(self, shared: SharedModel, turn: Turn, replica: Replica) -> tuple[Import | Skip, float | None]:
        """Whether to import, and the seconds that reading the prompt would take instead; None: not known."""
        view, model = self._book.find(turn.reservation.backend), turn.reservation.model
        if view is None:
            return Skip("the backend is gone"), None
        if why := self.unmovable(model, view.fingerprint):
            return Skip(why), None
        held, still, header = self._held_in(turn), None, replica.header
        if held is not None:
            # Never skip an import because one is remembered: the engine may have dropped it since.
            still = await self._control.call(lambda: self._moving.still(shared, turn))
        read_s = self._read_s(model, unread(held, still, header.tokens))
        decision = plan_import(
            replica=replica,
            held=held,
            fingerprint=view.fingerprint,
            context=view.context,
            still=still,
            read_s=read_s,
            import_s=self.tally.import_s(model, header.length) or import_guess(header.length),
        )
        return decision, read_s

    def _read_s(self, model: str, tokens: int) -> float | None:
        """What reading so many tokens takes here, beyond what every request does; None: not measured."""
        score = self._score(model)
        return None if score is None else score.ms_per_1k * tokens / 1e6

    def _held_in(self, turn: Turn) -> Held | None:
        backend, incarnation, slot = self._place(turn.reservation)
        if slot is None:
            found = self._holdings.find(backend, incarnation, turn.session)
            return found[1] if found else None
        held = self._holdings.at(backend, incarnation, slot)
        return held if held and held.session == turn.session else None

    # After a turn

    async def after(self, turn: Turn, usage: Usage) -> None:
        """Note what the slot holds now, and save and send it if that pays. Inside the reservation."""
        number = self.turn_of(turn.session) + 1
        self._promises.ended(turn, usage, number)
        place = self._place(turn.reservation)
        if usage.total is None:
            self._holdings.clear(*place, turn.session)
            return
        self._holdings.put(*place, Held(turn.session, number, usage.total))
        shared = self._models.get(turn.reservation.model)
        # What nobody named and nobody has gone on with is mostly a single question, and not worth a save.
        if shared is not None and self._exports is not None and not turn.begins:
            await self._exports.after(shared, turn, usage, number)

    def overtaken(self, turn: Turn) -> None:
        """The next turn has come before this one's cache was saved: what is saved by then is dropped."""
        if self._exports is not None:
            self._exports.overtaken(turn)

    # From other members

    async def take(self, carrier: Carrier, *keys: bytes, origin: str = "") -> Replica:
        """Receive a member's replica, sealed with one of the keys. Raises CacheRefused or StoreFull, among others."""
        replica = await self._intake.take(carrier, *keys, origin=origin, models=self._models)
        self._holdings.saw(replica.header.session, replica.header.turn)
        return replica

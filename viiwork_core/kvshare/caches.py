"""What happens to a session's cache around a turn: import before it, save and send after it.

Nothing here ever fails a turn. The worst is a cold one, with a line in the log that says why.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

import anyio
import anyio.to_thread
import structlog

from viiwork_core.clock import Clock
from viiwork_core.contracts.cache import CacheTransfer, SessionRef
from viiwork_core.contracts.engine import Spec
from viiwork_core.engines.slots import Reservation, SlotBook, SlotState
from viiwork_core.engines.states import BackendView
from viiwork_core.errors import CacheRefused, ViiworkError
from viiwork_core.kvshare.holdings import Held, Holdings
from viiwork_core.kvshare.planner import Import, Skip, check_count, judge, plan_import, plan_save, worth
from viiwork_core.kvshare.receiving import receive, require_same
from viiwork_core.kvshare.replicas import Replica, ReplicaStore
from viiwork_core.kvshare.sealing import ReplicaHeader, ReplicaLabel
from viiwork_core.kvshare.sending import Save, SendCounts, Sender
from viiwork_core.kvshare.turns import Turn, Usage
from viiwork_core.mesh.member import Member
from viiwork_core.registry.guard import Guard

ASK_S = 5.0
MOVE_S = 60.0
"""Deadline of a save or a restore: about 1 s a GB was measured, so this is far past the largest."""

T = TypeVar("T")

_log = structlog.get_logger("viiwork.kv")


class Control(Protocol):
    """Runs work on the control loop, where plugins live, and waits for it on the data loop."""

    async def call(self, make: Callable[[], Awaitable[T]]) -> T:
        """Await what `make` returns there. Cancelling the wait cancels the work."""
        ...


Target = Callable[[str, str, str, str], Member | None]
"""(model, session, group, fingerprint) -> the member that the session would go to next, if its cache fits there."""


@dataclass(frozen=True)
class SharedModel:
    """A model whose caches are shared."""

    group: str
    min_tokens: int
    cache: CacheTransfer
    specs: Mapping[str, Spec]
    """By backend id."""


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
    ) -> None:
        """`slotted`: whether a model's engine names its slots. No store or sender: nothing is shared."""
        self._models: Mapping[str, SharedModel] = {}
        self._slotted: dict[str, bool] = {}
        self._guards: dict[str, Guard] = {}
        self._book = book
        self._store = store
        self._sender = sender
        self._control = control
        self._target = target
        self._clock = clock
        self._holdings = Holdings()
        self._promised: dict[Reservation, int] = {}
        self._overtaken: set[Reservation] = set()
        self.imports: Counter[tuple[str, str]] = Counter()
        """(model, warmth or "unknown") -> turns that followed an import."""

        self.follow(models, slotted=slotted)

    def follow(self, models: Mapping[str, SharedModel], *, slotted: Mapping[str, bool]) -> None:
        """The models are these from now on. Turns of one that is gone end as they began."""
        for name, model in models.items():
            known = self._models.get(name)
            if known is None or known.cache is not model.cache:
                self._guards[name] = Guard(f"cache transfer {model.cache.engine}", clock=self._clock)
        self._models = models
        self._slotted.update(slotted)

    @property
    def sends(self) -> SendCounts | None:
        """What has been sent; None: this node sends no caches."""
        return self._sender.counts if self._sender else None

    @property
    def shares(self) -> bool:
        """Whether caches move at all here."""
        return self._store is not None

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
        return self._holdings.turn_of(session)

    def saw(self, session: str, turn: int) -> None:
        """Another node knows of this turn."""
        self._holdings.saw(session, turn)

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
        """Import the session's replica into the reserved slot, if that pays."""
        model = turn.reservation.model
        shared = self._models.get(model)
        replica = self._store.find(model, turn.session) if self._store else None
        if shared is None or replica is None:
            return
        # A restarted node finds replicas that it has not seen arrive, and must not count on from before them.
        self._holdings.saw(turn.session, replica.header.turn)
        decision = await self._decide(shared, turn, replica)
        if isinstance(decision, Skip):
            _log.info("kv import skipped", model=model, session=turn.session, reason=decision.reason)
            return
        self._book.enter(turn.reservation, SlotState.RESTORING)
        try:
            tokens = await self._control.call(lambda: self._restore(shared, turn, decision.replica))
        except ViiworkError as error:
            # A failed restore empties the slot, so what it held is gone either way.
            self._holdings.clear(*self._place(turn.reservation), turn.session)
            _log.warning("kv import failed", model=model, session=turn.session, reason=error.message)
            return
        self._promised[turn.reservation] = tokens
        held = Held(turn.session, replica.header.turn, tokens)
        self._holdings.put(*self._place(turn.reservation), held)
        _log.info("kv imported", model=model, session=turn.session, tokens=tokens, turn=held.turn)

    async def _decide(self, shared: SharedModel, turn: Turn, replica: Replica) -> Import | Skip:
        view = self._book.find(turn.reservation.backend)
        if view is None:
            return Skip("the backend is gone")
        held = self._held_in(turn)
        still = None
        if held is not None and held.turn >= replica.header.turn:
            still = await self._control.call(lambda: self._still(shared, turn))
        return plan_import(replica=replica, held=held, fingerprint=view.fingerprint, context=view.context, still=still)

    def _held_in(self, turn: Turn) -> Held | None:
        backend, incarnation, slot = self._place(turn.reservation)
        if slot is None:
            found = self._holdings.find(backend, incarnation, turn.session)
            return found[1] if found else None
        held = self._holdings.at(backend, incarnation, slot)
        return held if held and held.session == turn.session else None

    async def _still(self, shared: SharedModel, turn: Turn) -> int | None:
        """What the engine says it still holds: never skip an import because one is remembered."""
        reservation = turn.reservation
        ref = SessionRef(turn.session, reservation.slot)
        try:
            spec = _spec(shared, reservation)
            return await self._guards[reservation.model].call(
                "holds", ASK_S, lambda: shared.cache.holds(spec, reservation.address, ref)
            )
        except ViiworkError:
            return None

    async def _restore(self, shared: SharedModel, turn: Turn, replica: Replica) -> int:
        """On the control loop: verify, compare with the prompt, restore. The tokens that the turn should reuse."""
        assert self._store is not None
        reservation, cache, guard = turn.reservation, shared.cache, self._guards[turn.reservation.model]
        spec = _spec(shared, reservation)
        path = _folder(spec) / f"{turn.session}.restore"
        link = not cache.limits.refuses_links
        await anyio.to_thread.run_sync(partial(self._store.verified_copy, replica, path, link=link))
        try:
            file = await anyio.to_thread.run_sync(cache.read, path)
            covered = await guard.call(
                "covers", ASK_S, lambda: cache.covers(spec, reservation.address, file, turn.path, turn.body)
            )
            promised = worth(replica.header.tokens, covered, extends_only=cache.limits.extends_only)
            ref = SessionRef(turn.session, reservation.slot)
            restored = await guard.call(
                "restore", MOVE_S, lambda: cache.restore(spec, reservation.address, ref, path.name)
            )
        finally:
            path.unlink(missing_ok=True)
        return min(promised, restored)

    # After a turn

    async def after(self, turn: Turn, usage: Usage) -> None:
        """Note what the slot holds now, and save and send it if that pays. Inside the reservation."""
        number = self._holdings.next_turn(turn.session)
        self._check_promise(turn, usage)
        place = self._place(turn.reservation)
        if usage.total is None:
            self._holdings.clear(*place, turn.session)
            return
        self._holdings.put(*place, Held(turn.session, number, usage.total))
        shared = self._models.get(turn.reservation.model)
        # What nobody named and nobody has gone on with is mostly a single question, and not worth a save.
        if shared is not None and self._sender is not None and not turn.begins:
            await self._export(shared, turn, usage, number)

    def overtaken(self, turn: Turn) -> None:
        """The next turn has come before this one's cache was saved: what is saved by then is dropped."""
        if self._book.saving(turn.reservation):
            self._overtaken.add(turn.reservation)

    def _check_promise(self, turn: Turn, usage: Usage) -> None:
        promised = self._promised.pop(turn.reservation, None)
        if promised is None:
            return
        verdict = judge(promised_tokens=promised, cached_tokens=usage.cached, prompt_tokens=usage.prompt)
        self.imports[turn.reservation.model, verdict.warmth if verdict else "unknown"] += 1
        told = {"model": turn.reservation.model, "session": turn.session, "promised": promised, "cached": usage.cached}
        if verdict is None or verdict.kept:
            _log.info("kv import used", warmth=verdict.warmth if verdict else None, **told)
        else:
            _log.warning("kv import useless", warmth=verdict.warmth, **told)

    async def _export(self, shared: SharedModel, turn: Turn, usage: Usage, number: int) -> None:
        model, view = turn.reservation.model, self._book.find(turn.reservation.backend)
        fingerprint = view.fingerprint if view else None
        target = self._target(model, turn.session, shared.group, fingerprint) if fingerprint else None
        decision = plan_save(tokens=usage.total, min_tokens=shared.min_tokens, fingerprint=fingerprint, target=target)
        if isinstance(decision, Skip):
            _log.debug("kv save skipped", model=model, session=turn.session, reason=decision.reason)
            return
        assert fingerprint is not None, "plan_save exports nothing without one"
        assert self._sender is not None
        self._book.enter(turn.reservation, SlotState.SAVING)
        try:
            path, tokens, size = await self._control.call(lambda: self._save(shared, turn, usage, number))
        except ViiworkError as error:
            _log.warning("kv save failed", model=model, session=turn.session, reason=error.message)
            return
        finally:
            overtaken = turn.reservation in self._overtaken
            self._overtaken.discard(turn.reservation)
        if overtaken:
            path.unlink(missing_ok=True)
            _log.info("kv save overtaken", model=model, session=turn.session, turn=number)
            return
        label = ReplicaLabel(
            model=model, group=shared.group, fingerprint=fingerprint, session=turn.session, turn=number, tokens=tokens
        )
        self._sender.offer(Save(path, label, decision.target, size))

    async def _save(self, shared: SharedModel, turn: Turn, usage: Usage, number: int) -> tuple[Path, int, int]:
        """On the control loop: save, and check that the file is this session's. Path, tokens, bytes."""
        reservation, cache = turn.reservation, shared.cache
        spec = _spec(shared, reservation)
        path = _folder(spec) / f"{turn.session}.{number}.save"
        ref = SessionRef(turn.session, reservation.slot)
        try:
            saved = await self._guards[reservation.model].call(
                "save", MOVE_S, lambda: cache.save(spec, reservation.address, ref, path.name)
            )
            file = await anyio.to_thread.run_sync(cache.read, path)
            check_count(saved.tokens, file.tokens, usage)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        return path, saved.tokens, saved.bytes

    # From other members

    async def take(self, chunks: AsyncIterator[bytes], key: bytes, *previous: bytes) -> Replica:
        """Receive a replica, sealed with one of the keys. Raises CacheRefused, FingerprintMismatch or StoreFull."""
        if self._store is None:
            raise CacheRefused("no model's caches are shared here")
        replica = await receive(chunks, key=key, previous=previous, store=self._store, accepts=self._accept)
        header = replica.header
        self._holdings.saw(header.session, header.turn)
        _log.info("kv received", model=header.model, session=header.session, turn=header.turn, bytes=header.length)
        return replica

    def _accept(self, header: ReplicaHeader) -> None:
        shared = self._models.get(header.model)
        views = [self._book.find(backend) for backend in shared.specs] if shared else []
        prints = {view.fingerprint for view in views if view is not None}
        fingerprint = header.fingerprint if header.fingerprint in prints else next(iter(prints), None)
        require_same(header, group=shared.group if shared else None, fingerprint=fingerprint)


def _spec(shared: SharedModel, reservation: Reservation) -> Spec:
    """The backend's spec. Raises CacheRefused: a reload may have taken the backend away while its last turn ran."""
    try:
        return shared.specs[reservation.backend]
    except KeyError:
        raise CacheRefused(f"{reservation.backend} is not one of the model's backends any more") from None


def _folder(spec: Spec) -> Path:
    assert spec.cache_dir is not None, "a shared model's backends have a cache folder"
    return spec.cache_dir

"""Promises: what imports promised and what the turns after them reused; and how each turn of a session came out."""

from __future__ import annotations

import structlog

from viiwork_core.engines.slots import Reservation
from viiwork_core.errors import CacheUnsupported, ViiworkError
from viiwork_core.kvshare.movability import Movability
from viiwork_core.kvshare.planner import judge, warmth_of
from viiwork_core.kvshare.switches import Switches
from viiwork_core.kvshare.tally import UNKNOWN, Tally
from viiwork_core.kvshare.turns import Turn, Usage

_log = structlog.get_logger("viiwork.kv")


class Promises:
    """On the data loop."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._movability = Movability()
        self._switches = Switches()
        self._made: dict[Reservation, tuple[int, str]] = {}
        """Tokens that an import promised, and the fingerprint that it was of."""

    def made(self, reservation: Reservation, tokens: int, fingerprint: str) -> None:
        """A replica was imported for the turn on this reservation."""
        # Turns that failed never tell what they reused.
        self._made = {one: promise for one, promise in self._made.items() if not one.released}
        self._made[reservation] = tokens, fingerprint

    def ended(self, turn: Turn, usage: Usage, number: int) -> None:
        """Count the turn by where it ran and what it reused, and compare that with what an import promised."""
        model, backend = turn.reservation.model, turn.reservation.backend
        switch = self._switches.ended(model, turn.session, number=number, backend=backend, continues=turn.continues)
        if switch is not None:
            self._tally.turn(model, switch, warmth_of(usage.cached, usage.prompt))
        if (made := self._made.pop(turn.reservation, None)) is not None:
            self._check(turn, usage, *made)

    def _check(self, turn: Turn, usage: Usage, promised: int, fingerprint: str) -> None:
        model = turn.reservation.model
        verdict = judge(promised_tokens=promised, cached_tokens=usage.cached, prompt_tokens=usage.prompt)
        self._tally.warmths[model, str(verdict.warmth) if verdict else UNKNOWN] += 1
        told = {"model": model, "session": turn.session, "promised": promised, "cached": usage.cached}
        if verdict is None or verdict.kept:
            _log.info("kv import used", warmth=verdict.warmth if verdict else None, **told)
        else:
            self._tally.of(model).useless += 1
            _log.warning("kv import useless", warmth=verdict.warmth, **told)
        if verdict is None or not (verdict.kept or verdict.useless):
            return
        if self._movability.judged(model, fingerprint, useful=verdict.kept):
            reason = "its caches are restored with success and then not used: a sliding window or recurrent layers"
            remedy = "set what its engine needs for that, such as --swa-full in args, or remove kv_share"
            _log.warning("kv_share is off for a model", model=model, reason=reason, remedy=remedy)

    def failed(self, model: str, fingerprint: str, error: ViiworkError) -> None:
        """A save or a restore has: an engine that never does either is asked no more."""
        if isinstance(error, CacheUnsupported) and self._movability.unsupported(model, fingerprint, error.message):
            remedy = error.remedy or "remove kv_share, or change what keeps the engine from it"
            _log.warning("kv_share is off for a model", model=model, reason=error.message, remedy=remedy)

    def chance(self, model: str) -> float:
        """The chance that a session's next turn runs on another host than its last."""
        return self._switches.chance(model)

    def off(self, model: str, fingerprint: str | None) -> str | None:
        """Why the model's caches are not moved any more; None: they are."""
        return self._movability.off(model, fingerprint)

    def follow(self, model: str) -> None:
        """The model's configuration has changed."""
        self._movability.follow(model)

    def forget(self, session: str) -> None:
        """Nothing is known of the session any more."""
        self._switches.forget(session)

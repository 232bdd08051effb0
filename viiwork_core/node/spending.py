"""Spending: what each API key has used, here and by what members tell; written down so that it outlives a restart."""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
import structlog

from viiwork_core.atomic_file import save_then, write_atomically
from viiwork_core.clock import Clock
from viiwork_core.mesh.capacity import PeerView
from viiwork_core.mesh.report import SpentReport
from viiwork_core.proxy.exchange import Exchange
from viiwork_core.security.allowance import Allowance, Spent

FILE: Final = "spent.json"
SAVE_S: Final = 5.0
"""What keys have used is written down so often: a node that is killed forgets that much."""

_log = structlog.get_logger("viiwork.keys")


class Spending:
    """On the data loop."""

    def __init__(self, state_dir: Path, clock: Clock) -> None:
        self.allowance = Allowance(clock)
        self.requests: Counter[str] = Counter()
        """By key, what clients of this node asked for."""

        self.tokens: Counter[tuple[str, str]] = Counter()
        """By key and kind, prompt or completion: of what ran on this node's engines."""

        self._file = state_dir / FILE
        self._saved = 0

    def charge(self, exchange: Exchange, left: bool) -> None:
        """A request with a key has run on this node's engines. `left`: its client did, before the end.

        An answer that breaks off has no usage: it counts as its prompt, as estimated, and a token for each event.
        """
        usage, name = exchange.usage, exchange.request.key
        prompt, completion = usage.prompt, exchange.cut_events if usage.completion is None else usage.completion
        if prompt is None:
            prompt = exchange.request.query.prompt_tokens if left or exchange.status == 200 else 0
        self.tokens[name, "prompt"] += prompt
        self.tokens[name, "completion"] += completion
        self.allowance.spend(name, prompt + completion)

    @property
    def report(self) -> SpentReport | msgspec.UnsetType:
        """What keys have used on this node today."""
        day, tokens = self.allowance.own()
        return SpentReport(day, dict(tokens)) if tokens else msgspec.UNSET

    def heard(self, view: PeerView) -> None:
        """A member has reported."""
        spent = view.report.spent
        if isinstance(spent, SpentReport):
            self.allowance.heard(view.member.node, spent.day, spent.tokens)

    # What outlives a restart

    def restore(self) -> None:
        """Read what was written down before. Blocks."""
        try:
            self.allowance.restore(msgspec.json.decode(self._file.read_bytes(), type=Spent))
        except FileNotFoundError:
            return
        except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            _log.warning("what keys have used today is not known", path=str(self._file), reason=str(error))

    async def save_often(self) -> None:
        """Write down what is used, until cancelled and then once more."""
        try:
            while True:
                await asyncio.sleep(SAVE_S)
                if self.allowance.changes != self._saved:
                    await self._save_aside()
        finally:
            self.save()

    async def _save_aside(self) -> None:
        """Write it down in a thread. What is written is copied here: requests go on meanwhile, and change it."""
        spent, changes = self.allowance.spent(), self.allowance.changes
        await save_then(partial(self._write, spent), partial(self._hold, changes))

    def save(self) -> None:
        """Write down what has changed since the last time. Blocks."""
        if self.allowance.changes != self._saved:
            self._write(self.allowance.spent())
            self._hold(self.allowance.changes)

    def _write(self, spent: Spent) -> None:
        try:
            write_atomically(self._file, msgspec.json.encode(spent) + b"\n")
        except OSError as error:
            _log.warning("what keys have used is not written down", path=str(self._file), reason=str(error))

    def _hold(self, changes: int) -> None:
        """Also after a write that failed: it is tried again with the next change."""
        self._saved = changes

"""Draining a node: it takes no new work, what runs may finish, and its sessions are brought to other members.

New requests that come here are answered by other members. The engines stay up with all they hold, so that the end of a
drain costs nothing. In memory only: a node that starts takes requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import structlog

from viiwork_core.clock import Clock
from viiwork_core.engines.slots import SlotBook
from viiwork_core.errors import InvalidRequest
from viiwork_core.kvshare.caches import Caches
from viiwork_core.kvshare.handover import Handover
from viiwork_core.node.background import Background
from viiwork_core.node.learning import Learning
from viiwork_core.observe.events import EventLog
from viiwork_core.proxy.account import Account, Accounts
from viiwork_core.routing.backends import LocalBackends

MOST_TOLD: Final = 100
"""Requests that are told of one by one."""

READ_S: Final = 3.0
"""A node that is to end waits so long for somebody to read how the drain went."""

Then = Literal["stop", "restart"]
State = Literal["serving", "draining", "drained"]

_log = structlog.get_logger("viiwork.node")


@dataclass
class _Round:
    """One drain."""

    began: float
    timeout_s: float
    """0: no limit."""

    then: Then | None
    waits_for: frozenset[str]
    """Ids of the requests that were under way when it began. Later ones go elsewhere."""

    handover: Handover
    limit: asyncio.Timeout | None = None
    ended: float | None = None
    left: dict[str, Account] = field(default_factory=dict)
    """Requests that still ran when the time was up."""

    read: asyncio.Event = field(default_factory=asyncio.Event)
    """Somebody has been told how it ended."""


class Draining:
    """On the data loop."""

    def __init__(
        self,
        node: str,
        local: LocalBackends,
        book: SlotBook,
        accounts: Accounts,
        learning: Learning,
        events: EventLog,
        wake: Callable[[], None],
        clock: Clock,
    ) -> None:
        """`wake` has those who wait in the queue looked at again."""
        self._node = node
        self._local = local
        self._book = book
        self._accounts = accounts
        self._learning = learning
        self._events = events
        self._wake = wake
        self._clock = clock
        self._caches: Caches | None = None
        self._background: Background | None = None
        self._ends = False
        self._round: _Round | None = None
        self._task: asyncio.Task[None] | None = None
        self.departure: Future[Then] = Future()
        """Resolved with what this process does next, when a drain that is to end it is over."""

    def follow(self, caches: Caches, background: Background, *, ends: bool) -> None:
        """`ends`: whoever runs this node waits for `departure`."""
        self._caches, self._background, self._ends = caches, background, ends

    def drains(self) -> bool:
        """Whether the node takes no new work."""
        return self._local.closed

    def begin(self, timeout_s: float, then: Then | None) -> dict[str, Any]:
        """Take no new work from now on; returns at once. While that goes on, only its limit and its end are changed.

        Raises InvalidRequest for an end that whoever runs this node cannot bring about.
        """
        if then is not None and not self._ends:
            remedy = "drain it, then stop or restart the server by its own means"
            raise InvalidRequest("this node is run by another server than `viiwork serve`", remedy=remedy)
        if self._round is not None and self._round.ended is None:
            self._change(self._round, timeout_s, then)
        else:
            self._start(timeout_s, then)
        return self.told()

    def _start(self, timeout_s: float, then: Then | None) -> None:
        assert self._caches is not None, "the node is open"
        assert self._background is not None
        under_way, now = frozenset(self._accounts.under_way()), self._clock.monotonic()
        one = self._round = _Round(now, timeout_s, then, under_way, self._caches.handover())
        self._local.closed = True
        self._wake()
        self._tell("drains: it takes no new work")
        task = self._task = asyncio.get_running_loop().create_task(self._run(one))
        self._background.serve(_ended(task))

    @staticmethod
    def _change(one: _Round, timeout_s: float, then: Then | None) -> None:
        one.timeout_s, one.then = timeout_s, then or one.then
        # One that has been reached is over, though what it has cut short may not have ended yet.
        if one.limit is not None and not one.limit.expired():
            loop = asyncio.get_running_loop()
            one.limit.reschedule(loop.time() + timeout_s if timeout_s else None)

    def end(self) -> dict[str, Any]:
        """Take requests again, whether it had come to its end or not."""
        if self._task is not None:
            self._task.cancel()
        self._round = self._task = None
        if self._local.closed:
            self._local.closed = False
            self._wake()
            self._tell("takes requests again")
        return self.told()

    async def _run(self, one: _Round) -> None:
        try:
            async with asyncio.timeout(one.timeout_s or None) as one.limit:
                await one.handover.run(lambda: self._over(one), self._learning.elsewhere)
        except TimeoutError:
            one.left = {
                rid: found for rid, found in self._accounts.under_way().items() if self._counts(one, rid, found)
            }
        one.ended = self._clock.monotonic()
        told = self._told(one)
        figures = {"requests_left": told["requests"]["remaining"], "sessions_left": told["sessions"]["remaining"]}
        _log.info("the node is drained", seconds=told["seconds"], moved=told["sessions"]["moved"], **figures)
        self._events.emit("system", f"{self._node} is drained")
        if one.then is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(READ_S):
                    await one.read.wait()
            if not self.departure.done():  # a second drain, begun while the process ends
                self.departure.set_result(one.then)

    def _over(self, one: _Round) -> bool:
        """Whether nothing runs in the engines, and nothing that was under way is."""
        if not all(self._book.idle(view.id) for view in self._book.views()):
            return False
        return one.waits_for.isdisjoint(self._accounts.under_way())

    @staticmethod
    def _counts(one: _Round, rid: str, account: Account) -> bool:
        return rid in one.waits_for or account.backend is not None

    def told(self) -> dict[str, Any]:
        """GET /v1/drain."""
        one = self._round
        if one is None:
            return {"node": self._node, "state": "serving"}
        if one.ended is not None:
            one.read.set()
        return self._told(one)

    def _told(self, one: _Round) -> dict[str, Any]:
        state: State = "draining" if one.ended is None else "drained"
        now = self._clock.monotonic() if one.ended is None else one.ended
        return {
            "node": self._node,
            "state": state,
            "seconds": round(now - one.began, 1),
            "timeout_s": one.timeout_s,
            **({} if one.then is None else {"then": one.then}),
            "requests": self._requests(one),
            "sessions": one.handover.told(),
        }

    def _requests(self, one: _Round) -> dict[str, Any]:
        under_way = self._accounts.under_way() if one.ended is None else one.left
        left = {rid: account for rid, account in under_way.items() if self._counts(one, rid, account)}
        return {
            "ended": len(one.waits_for - left.keys()),
            "remaining": len(left),
            "left": [_request(rid, account) for rid, account in list(left.items())[:MOST_TOLD]],
        }

    def _tell(self, what: str) -> None:
        _log.info(f"the node {what}")
        self._events.emit("system", f"{self._node} {what}")


def _request(rid: str, account: Account) -> dict[str, str]:
    place = account.backend or (f"peer {account.peer}" if account.peer else "")
    return {"request_id": rid, "model": account.query.model, **({"at": place} if place else {})}


async def _ended(task: asyncio.Task[None]) -> None:
    """Wait for the task. Cancelling the wait cancels the task, too."""
    await task

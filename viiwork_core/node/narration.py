"""Narration: what becomes of this node's backends and of other members, told to the activity log."""

from __future__ import annotations

import structlog

from viiwork_core.engines.slots import SlotBook
from viiwork_core.engines.states import BackendState
from viiwork_core.mesh.capacity import PeerView
from viiwork_core.observe.events import EventLog

_log = structlog.get_logger("viiwork.node")


class Narration:
    """Compares with what it has told before. On the data loop."""

    def __init__(self, log: EventLog, book: SlotBook) -> None:
        self._log = log
        self._book = book
        self._states: dict[str, tuple[BackendState, int]] = {}
        self._members: dict[str, str] = {}

    def look(self) -> None:
        """Tell of each backend that has another state than when it was told of last, or was started again since."""
        known, self._states = self._states, {}
        for view in self._book.views():
            now = self._states[view.id] = (view.state, view.respawns)
            if known.get(view.id) != now:
                self._log.backend(view.id, str(view.state), view.reason)

    def heard(self, view: PeerView) -> None:
        """A member has reported. Tells of it when it is the first time, or another run of that node."""
        member = view.member
        if self._members.get(member.node) != member.node_id:
            self._members[member.node] = member.node_id
            self._log.emit("system", f"member {member.node} is here")

    def forgot(self, node: str) -> None:
        """A member has left or died."""
        if self._members.pop(node, None) is not None:
            self._log.emit("system", f"member {node} is gone")


def struck(message: str) -> None:
    """The policy has failed a request, which went on without it."""
    _log.warning("policy strike", reason=message)

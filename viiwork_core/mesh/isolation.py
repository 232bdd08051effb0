"""Isolation: all other nodes are out of reach at once, which says more about this machine's cable than about them."""

from __future__ import annotations

from typing import Final

import structlog

FEWEST: Final = 2
"""Of one other node that is lost nobody can say whose cable it was."""

_log = structlog.get_logger("viiwork.mesh")


class Isolation:
    """Knows which of the polled processes answer, and tells the log when none does any more."""

    def __init__(self) -> None:
        self._answers: dict[tuple[str, str], bool] = {}
        self.isolated = False
        """Whether all that answered once are silent now."""

    def came(self, process: tuple[str, str]) -> None:
        """(node, node_id) has answered."""
        self._answers[process] = True
        if self.isolated:
            self.isolated = False
            _log.info("other nodes answer again", node=process[0])

    def failed(self, process: tuple[str, str]) -> None:
        """(node, node_id) has not answered. One that never answered says nothing about this machine."""
        if process in self._answers:
            self._answers[process] = False
            self._look()

    def gone(self, process: tuple[str, str]) -> None:
        """(node, node_id) is no member any more: it left, or was silent for long enough to count as dead."""
        if self._answers.pop(process, True) and not self._answers:
            self.isolated = False

    def _look(self) -> None:
        if self.isolated or len(self._answers) < FEWEST or any(self._answers.values()):
            return
        self.isolated = True
        _log.warning(
            "all other nodes are out of reach at once",
            nodes=sorted({node for node, _ in self._answers}),
            reason="this machine's own network may be down; what runs here is served on",
        )

"""Clock skew: how far another machine's clock is from this one's, as the time in its answers tells."""

from __future__ import annotations

from typing import Final

import structlog

WARN_S: Final = 60.0
"""Beyond it a member is named; beyond signing.SKEW_S its requests are refused."""

_NEAR_S: Final = 5.0
"""How far under WARN_S it must be to be called well again: answers tell whole seconds."""

_log = structlog.get_logger("viiwork.mesh")


class Skew:
    """One member's clock. Tells the log once when it is too far off, and once when it is well again."""

    def __init__(self) -> None:
        self._off = False
        self.seconds: float | None = None
        """How far it was ahead of this node's, negative: behind, to about a second; None: it never told the time."""

    def saw(self, node: str, theirs: float | None, ours: float) -> None:
        """`theirs`: Unix seconds in an answer, cut to whole ones; None: it tells none. `ours`: when it came."""
        if theirs is None:
            return
        off = self.seconds = theirs + 0.5 - ours
        if not self._off and abs(off) > WARN_S:
            side = "ahead of" if off > 0 else "behind"
            _log.warning(
                "clock skew",
                node=node,
                reason=f"the clock of {node} is {min(abs(off), 1e9):.0f} s {side} this node's",
                remedy="synchronise the clocks of both machines (NTP)",
            )
            self._off = True
        elif self._off and abs(off) < WARN_S - _NEAR_S:
            _log.info("clocks agree again", node=node)
            self._off = False

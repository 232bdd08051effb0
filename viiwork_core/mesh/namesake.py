"""Namesakes: two processes must not be the same node. The younger one ends, and says who has the name."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import structlog

from viiwork_core.errors import BackendFailed, ConfigError, ViiworkError
from viiwork_core.mesh.greeter import Greeter
from viiwork_core.mesh.greeting import Greeting
from viiwork_core.mesh.links import api_of
from viiwork_core.mesh.member import Member
from viiwork_core.mesh.membership import Gossip

LOOK_S: Final = 0.5

YOUNG_S: Final = 60.0
"""Below this age a process ends for an older namesake. Beyond it it has been relied on, and only says so."""

_TIE_S: Final = 1.0
"""Ages closer than this cannot be told apart over a network: then the ids decide, which both sides read alike."""

_log = structlog.get_logger("viiwork.mesh")


class Namesakes:
    """Looks at members of this node's name, on the control loop."""

    def __init__(
        self,
        gossip: Gossip,
        greeter: Greeter,
        *,
        node_id: str,
        age_s: Callable[[], float],
        refuse: Callable[[ViiworkError], None],
    ) -> None:
        """`refuse` is called, once, when this process must end; `age_s`: seconds since it began."""
        self._gossip = gossip
        self._greeter = greeter
        self._node_id = node_id
        self._age_s = age_s
        self._refuse = refuse
        self._settled: set[str] = set()

    async def run(self) -> None:
        """Until this process must end, or is cancelled."""
        while not await self.step():  # noqa: ASYNC110  # an API that does not answer yet rings no bell
            await asyncio.sleep(LOOK_S)

    async def step(self) -> bool:
        """Look once; whether this process must end."""
        namesakes = self._gossip.namesakes()
        self._settled &= {member.node_id for member in namesakes}
        for member in namesakes:
            if member.node_id not in self._settled and await self._judge(member):
                return True
        return False

    async def _judge(self, member: Member) -> bool:
        try:
            greeting = await self._greeter.greet(api_of(member))
        except BackendFailed:
            return False  # an earlier run that has ended, or one that does not answer yet
        if greeting.node_id != member.node_id:
            # Where the earlier run was, this one or a later one answers.
            self._settled.add(member.node_id)
            return False
        return self._yields(member, greeting)

    def _yields(self, member: Member, greeting: Greeting) -> bool:
        own = self._age_s()
        older_by = greeting.age_s - own
        younger = self._node_id > member.node_id if abs(older_by) <= _TIE_S else older_by > 0
        error = ConfigError(
            f"node.name: name in use by the node {member.node} at {api_of(member)}",
            remedy="give this node a name of its own in node.name, or stop the other one",
        )
        if younger and own < YOUNG_S:
            self._refuse(error)
            return True
        _log.error("two nodes have this node's name", reason=error.message, remedy=error.remedy)
        self._settled.add(member.node_id)
        return False

"""What a node keeps of its requests: the accounts of the last, and a recording where the configuration names a file."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

import msgspec
import structlog

from viiwork_core.clock import Clock
from viiwork_core.config.schema import ActivityConfig, Config
from viiwork_core.contracts.policy import Candidate, Query
from viiwork_core.errors import NotFound, ViiworkError
from viiwork_core.mesh.member import Member
from viiwork_core.node.background import Background
from viiwork_core.node.keyring import Keyring
from viiwork_core.node.learning import Learning
from viiwork_core.node.meshwork import Mesh
from viiwork_core.node.recording import Recording
from viiwork_core.node.telemetry import traces_of
from viiwork_core.observe.metrics import Metrics
from viiwork_core.observe.prompts import PromptHistory
from viiwork_core.proxy.account import REMEMBERED, Accounts, told, whole
from viiwork_core.proxy.exchange import Exchange
from viiwork_core.registry.guard import GuardedPolicy
from viiwork_core.routing.router import Router
from viiwork_core.web.outcomes import Outcomes
from viiwork_core.web.prompts import Prompts

ASK_S: Final = 2.0
"""How long a member may take to tell what it knows of a request."""

AT_ONCE: Final = 16

PATH: Final = "/v1/why/"

_log = structlog.get_logger("viiwork.node")


class Records:
    """On the data loop."""

    def __init__(
        self,
        config: Config,
        policy: GuardedPolicy,
        learning: Learning,
        metrics: Metrics,
        router: Router,
        keyring: Keyring,
        clock: Clock,
    ) -> None:
        self.accounts = Accounts(clock)
        self._node = config.node.name
        self._policy = policy
        self._mesh: Mesh | None = None
        self._recording = Recording(config.routing.trace, clock) if config.routing.trace else None
        note: Callable[[Exchange, float], None] = self._recording.note if self._recording else lambda *_: None
        observe = policy.observe if policy.learns else None
        self._traces = traces_of(config, clock)
        self.prompts = _prompts(config.activity, clock)
        self.outcomes = Outcomes(
            observe,
            learning.ended,
            metrics.ended,
            router.knows,
            note,
            keyring.spending.charge,
            self._traces,
            self.prompts,
        )

    def open(self, background: Background, mesh: Mesh | None) -> None:
        """Record from now on, and ask these members. Raises ConfigError for a file that cannot be written."""
        self._mesh = mesh
        if self._recording is not None:
            self._recording.open()
            background.serve(self._recording.run())
        if self._traces is not None:
            background.serve(self._traces.run())

    async def why(self, rid: str, everywhere: bool) -> dict[str, Any]:
        """The account of a request, as the node has it that chose a place for it; `everywhere`: members are asked.

        Raises NotFound.
        """
        account = self.accounts.find(rid)
        found = [] if account is None else [told(account, self._node, self._reason)]
        if everywhere and (account is None or account.hop):
            found += await self._asked(f"{PATH}{quote(rid, safe='')}?here=1")
        best = whole(found)
        if best is None:
            what = f"no node that answers knows a request {rid[:128]}"
            remedy = (
                f"name it as its answer's X-Request-Id does; each node remembers its last {REMEMBERED}, until it ends"
            )
            raise NotFound(what, remedy=remedy)
        return best

    def _reason(
        self, policy: str, query: Query, candidates: Sequence[Candidate], first: str
    ) -> tuple[str, Mapping[str, float]]:
        reason = self._policy.why(policy, query, candidates, first)
        return reason.rule, reason.prices

    async def _asked(self, path: str) -> list[dict[str, Any]]:
        """What the members say of a request. Silence is no answer."""
        mesh = self._mesh
        if mesh is None:
            return []
        room, found = asyncio.Semaphore(AT_ONCE), list[dict[str, Any]]()

        async def ask(member: Member) -> None:
            try:
                async with room:
                    answer = msgspec.json.decode(await mesh.links.get_json_bytes(member, path, ASK_S))
            except (ViiworkError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                return
            # It speaks for itself: another's words are not taken from it.
            if isinstance(answer, dict) and answer.get("node") == member.node:
                found.append(answer)

        async with asyncio.TaskGroup() as group:
            for member in mesh.membership.members():
                group.create_task(ask(member))
        return found


def _prompts(config: ActivityConfig, clock: Clock) -> Prompts | None:
    """What keeps them, told in the log; None: nothing is kept."""
    if config.prompts == "off":
        return None
    what = "texts of requests and answers are" if config.prompts == "full" else "sizes of requests are"
    told = _log.warning if config.prompts == "full" else _log.info
    told(f"{what} kept in memory", activity_prompts=config.prompts, requests=config.prompt_history)
    return Prompts(config.prompts, PromptHistory(config.prompt_history), clock)

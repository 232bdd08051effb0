"""Forgetting sessions: here, at every member that is alive, and at those that are away, once they are back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import msgspec
import structlog

from viiwork_core.atomic_file import save_then
from viiwork_core.config.schema import Config
from viiwork_core.errors import ViiworkError
from viiwork_core.kvshare.caches import Caches
from viiwork_core.kvshare.forgotten import Forgotten, ForgottenFile
from viiwork_core.mesh.capacity import PeerView
from viiwork_core.mesh.links import Links
from viiwork_core.mesh.member import Member
from viiwork_core.node.background import Background
from viiwork_core.node.learning import Learning
from viiwork_core.node.meshwork import Mesh

FORGET: Final = "/v1/kv/forget"
FORGOTTEN: Final = "/v1/kv/forgotten"
ASK_S: Final = 5.0
HOUR_S: Final = 3600.0

_log = structlog.get_logger("viiwork.kv")


class Forgetting:
    """The tombstones of this node. On the data loop; a change is on disk before it counts."""

    def __init__(self, config: Config, learning: Learning, *, secured: bool) -> None:
        """`secured`: members can be told at once. In an open mesh they hear of it with the next capacity report."""
        self._file = ForgottenFile(config.node.state_dir / "kv")
        self._learning = learning
        self._secured = secured
        self._table = Forgotten()
        self._turn = asyncio.Lock()
        self._caches: Caches | None = None
        self._links: Links | None = None
        self._members: Callable[[], Sequence[Member]] = tuple
        self._background: Background | None = None
        self._fetched: dict[str, str] = {}
        """Process of a member -> the digest that its table had when it was fetched, or tried to."""

    async def open(self) -> None:
        """Read what was forgotten before. Raises ConfigError."""
        self._table = await asyncio.to_thread(self._file.load)

    def follow(self, caches: Caches, mesh: Mesh | None, background: Background) -> None:
        """Take part in the mesh, and let time pass for the tombstones."""
        self._caches, self._background = caches, background
        background.serve(self._pass_time())
        if mesh is not None:
            self._links, self._members = mesh.links, mesh.membership.members
        # What arrived while this node was ending is dropped now.
        for session in self._table:
            caches.saw(session, self._table.turn(session) or 0)

    @property
    def digest(self) -> str:
        """The digest of the whole table."""
        return self._table.digest

    @property
    def count(self) -> int:
        """How many tombstones there are."""
        return len(self._table)

    def buried(self, session: str) -> int | None:
        """The turn up to which a session is forgotten; None: it is not."""
        return self._table.turn(session)

    def page(self) -> bytes:
        """The table, for a member."""
        return self._table.encode()

    # What the operator asks for

    async def forget(self, sessions: Sequence[str]) -> dict[str, Any]:
        """Forget sessions (keys) here and at every member that is alive. Who has done it, and who has not yet.

        Raises ViiworkError when it cannot be written down here.
        """
        turns = dict.fromkeys(sessions, 0)
        replicas = await self.told(turns)
        told = {session: self._table.turn(session) or 0 for session in sessions}
        members = [member for member in self._members() if member.role == "node"]
        answers = await asyncio.gather(*(self._tell(member, told) for member in members)) if self._secured else []
        reached = {member.node for member, answer in zip(members, answers, strict=False) if answer is not None}
        missing = sorted({member.node for member in members} - reached)
        return {
            "sessions": sorted(sessions),
            "replicas": replicas + sum(answer or 0 for answer in answers),
            "members": {"alive": len(members) + 1, "have": len(reached) + 1, "missing": missing},
        }

    async def told(self, turns: Mapping[str, int]) -> int:
        """Forget sessions here, each up to a turn and to the newest one that this node knows. Replicas dropped."""
        caches = self._caches
        async with self._turn:
            table = self._table
            for session, turn in turns.items():
                table = table.with_one(session, max(turn, caches.turn_of(session) if caches else 0))
            await self._replace(table)
        return await self._drop(turns)

    async def _tell(self, member: Member, turns: Mapping[str, int]) -> int | None:
        """How many replicas a member has dropped; None: it did not answer as it should."""
        assert self._links is not None, "where there are members there are links"
        body, headers = msgspec.json.encode({"turns": turns}), [("Content-Type", "application/json")]
        try:
            async with (
                asyncio.timeout(ASK_S),
                self._links.open_post(member, FORGET, headers=headers, body=body) as response,
            ):
                answer = msgspec.json.decode(await response.content.read(4096), type=dict[str, Any])
                return int(answer["replicas"])  # an error's body has none
        except (ViiworkError, TimeoutError, OSError, msgspec.MsgspecError, ValueError, KeyError, TypeError) as error:
            _log.warning("a member was not told what to forget", node=member.node, reason=str(error) or "no answer")
            return None

    async def _drop(self, sessions: Mapping[str, object]) -> int:
        replicas = 0
        for session in sessions:
            self._learning.forget(session)
            if self._caches is not None:
                replicas += await self._caches.forget(session)
            _log.info("session forgotten", session=session, turn=self._table.turn(session))
        return replicas

    # What comes from members

    def heard(self, view: PeerView) -> None:
        """A member has reported: fetch what it has forgotten, if that is not what this node has."""
        digest, member = view.report.forgotten, view.member
        if not digest or self._background is None or digest in (self.digest, self._fetched.get(member.node_id)):
            return
        if len(self._fetched) > 1024:
            self._fetched.clear()
        self._fetched[member.node_id] = digest
        self._background.serve(self._fetch(member))

    async def _fetch(self, member: Member) -> None:
        assert self._links is not None, "a member has reported"
        try:
            theirs = Forgotten.decode(await self._links.get_json_bytes(member, FORGOTTEN, ASK_S))
            async with self._turn:
                before = self._table
                await self._replace(before.merged(theirs))
                news = dict.fromkeys(self._table.news(before))
            await self._drop(news)
        except ViiworkError as error:
            self._fetched.pop(member.node_id, None)
            _log.warning("what a member has forgotten was not fetched", node=member.node, reason=error.message)

    async def _pass_time(self) -> None:
        while True:
            await asyncio.sleep(HOUR_S)
            try:
                async with self._turn:
                    await self._replace(self._table.older())
            except ViiworkError as error:
                _log.error("forgotten sessions are kept for longer", reason=error.message)

    async def _replace(self, table: Forgotten) -> None:
        if table.encode() != self._table.encode():
            await save_then(partial(self._file.save, table), partial(self._hold, table))

    def _hold(self, table: Forgotten) -> None:
        self._table = table

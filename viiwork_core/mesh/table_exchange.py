"""Fetching a table from members. Each member's capacity report has a digest of its table, which is the hint; the table
is fetched over signed HTTP, in pages, when it may have something that this node does not know."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Final, Generic
from urllib.parse import quote

import msgspec
import structlog

from viiwork_core.clock import Clock
from viiwork_core.errors import BackendFailed, ViiworkError
from viiwork_core.mesh.book import Book
from viiwork_core.mesh.capacity import PeerView
from viiwork_core.mesh.links import Links
from viiwork_core.mesh.member import Member
from viiwork_core.mesh.report import CapacityReport
from viiwork_core.mesh.table import W

PAGE_S: Final = 5.0
PAGES: Final = 128
AT_ONCE: Final = 4
RETRY_S: Final = 2.0
LONGEST_RETRY_S: Final = 60.0

_log = structlog.get_logger("viiwork.mesh")


class TableExchange(Generic[W]):
    """On the data loop."""

    def __init__(
        self,
        book: Book[W],
        links: Links,
        *,
        path: str,
        digest_in: Callable[[CapacityReport], str | msgspec.UnsetType],
        clock: Clock,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        """`path`: where members tell the table with ?table=1; `digest_in`: the hint in a member's report."""
        self._path = f"{path}?table=1"
        self._digest_in = digest_in
        self._book = book
        self._links = links
        self._clock = clock
        self._spawn = spawn
        self._fetching: set[str] = set()
        self._failed: dict[str, tuple[float, float]] = {}
        """Process -> when it may be asked again, and the time to wait after another failure."""

        self._refused: set[tuple[str, str]] = set()

    def heard(self, view: PeerView) -> None:
        """A member has reported: fetch its table, unless all of it is known here or is being fetched already."""
        digest, member = self._digest_in(view.report), view.member
        if not digest or self._book.contains(digest) or digest in self._fetching or len(self._fetching) >= AT_ONCE:
            return
        if self._clock.monotonic() < self._failed.get(member.node_id, (0.0, 0.0))[0]:
            return
        self._fetching.add(digest)
        self._spawn(self._fetch(member, digest))

    async def _fetch(self, member: Member, digest: str) -> None:
        try:
            digests = await self._pages(member, digest)
            # The member had the table of the hint before it was asked, so it is in what came.
            await self._book.merge(self._book.text.table(), digest, *digests)
        except ViiworkError as error:
            self._fail(member, error.message)
        else:
            self._failed.pop(member.node_id, None)
        finally:
            self._fetching.discard(digest)

    async def _pages(self, member: Member, hint: str) -> set[str]:
        """Merge all pages as they come. Returns the digest that they bear, if it is the same on each. `hint`: the one
        of the member's report."""
        after, digests = "", set[str]()
        for _ in range(PAGES):
            path = f"{self._path}&after={quote(after)}" if after else self._path
            page, table, refused = self._book.text.read_page(await self._links.get_json_bytes(member, path, PAGE_S))
            self._complain(member, refused)
            if refused:
                self._book.note_refused(hint, page.digest)
            await self._book.merge(table)
            digests.add(page.digest)
            if page.next is None:
                return digests if len(digests) == 1 else set()
            if page.next <= after:
                raise BackendFailed(f"its pages of {self._book.text.field} do not go on")
            after = page.next
        raise BackendFailed(f"its {self._book.text.field} have over {PAGES} pages")

    def _fail(self, member: Member, reason: str) -> None:
        _, wait = self._failed.get(member.node_id, (0.0, RETRY_S))
        if member.node_id not in self._failed:
            _log.warning(f"{self._book.text.field} could not be fetched", node=member.node, reason=reason)
        now = self._clock.monotonic()
        # Who has left is forgotten here, a good while later.
        self._failed = {node: found for node, found in self._failed.items() if found[0] + LONGEST_RETRY_S > now}
        self._failed[member.node_id] = (now + wait, min(LONGEST_RETRY_S, wait * 2))

    def _complain(self, member: Member, refused: list[str]) -> None:
        """Log once what a member says that cannot be."""
        for reason in refused[:8]:
            if (member.node_id, reason) not in self._refused and len(self._refused) < 256:
                self._refused.add((member.node_id, reason))
                _log.warning(f"{self._book.text.one.split()[-1]} ignored", node=member.node, reason=reason)

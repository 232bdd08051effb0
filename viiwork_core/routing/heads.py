"""Heads: the newest known point of each conversation, and where its cache is.

The node that served a turn publishes the conversation's head with its capacity, so that any entry node recognises the
request that extends it, without state of its own, also after a restart. The node that relayed the turn knows it before
the next report.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Self

import msgspec

from viiwork_core.mesh.report import HeadReport
from viiwork_core.routing.conversation import Chain, Mark

RELAYED_LIMIT: Final = 4096
"""Conversations that this node relayed and remembers."""

REMEMBERED_POINTS: Final = 4
"""Heads that are remembered of one: a client may ask for its last reply once more, or go back a few turns."""


class Kind(StrEnum):
    """How warm a conversation is at its host."""

    LIVE = "live"
    """A slot holds it."""

    PARKED = "parked"
    """No slot does, but the engine may have put it aside in its own memory."""

    REPLICA = "replica"
    """A file that can be imported."""


class Head(msgspec.Struct, frozen=True, gc=False):
    """One point of a conversation: a request and the reply to it."""

    link: int
    """The request's last hash."""

    mark: Mark
    """The reply's."""

    session: str
    """Keyed hash of the session's name, or a name given to the conversation; hex."""

    tokens: int
    """Of the request and the reply: what the cache holds."""

    turn: int
    kind: Kind = Kind.LIVE
    backend: str | None = None

    def report(self) -> HeadReport:
        """The head for a capacity report."""
        call, text = self.mark.call, self.mark.text
        return HeadReport(
            link=f"{self.link:016x}",
            session=self.session,
            tokens=self.tokens,
            turn=self.turn,
            kind=self.kind.value,
            call=None if call is None else f"{call:016x}",
            text=None if text is None else f"{text:016x}",
            backend=self.backend,
        )

    @classmethod
    def read(cls, report: HeadReport) -> Self:
        """The head that a member reports."""
        call, text = report.call, report.text
        mark = Mark(None if call is None else int(call, 16), None if text is None else int(text, 16))
        kind = Kind(report.kind)
        return cls(int(report.link, 16), mark, report.session, report.tokens, report.turn, kind, report.backend)


class Match(msgspec.Struct, frozen=True, gc=False):
    """An earlier request that a new one extends."""

    session: str
    at: int
    """The place, in the new request, of the earlier one's last message."""


Told = Sequence[tuple[str, Sequence[HeadReport]]]
"""What a node publishes: its heads by model."""


@dataclass(slots=True)
class _Relayed:
    """A conversation of which this node relayed the last turn."""

    node: str
    """Where it ran."""

    at: float
    """When it ended."""

    heads: list[Head]
    """The newest first."""


@dataclass(slots=True)
class _Report:
    """What a node published last."""

    asked_at: float
    told: Told
    heads: Sequence[tuple[str, Head]]
    sessions: Mapping[tuple[str, str], Head]


class Conversations:
    """Every conversation that some node published or that this one relayed. Pure, on the data loop."""

    def __init__(self) -> None:
        self._reports: dict[str, _Report] = {}
        self._relayed: OrderedDict[tuple[str, str], _Relayed] = OrderedDict()
        """By (model, session), the one silent for longest first."""

        self._published_at: dict[tuple[str, int], list[Head]] = {}
        """(model, link) -> what nodes published."""

        self._relayed_at: dict[tuple[str, int], list[Head]] = {}

    def report(self, node: str, told: Told, asked_at: float) -> None:
        """Take in what a node publishes, in place of what it published before."""
        old = self._reports.get(node)
        if old is not None and old.told == told:
            old.asked_at = asked_at
            return
        self.forget(node)
        heads = [(model, Head.read(head)) for model, reports in told for head in reports]
        sessions: dict[tuple[str, str], Head] = {}
        for model, head in heads:
            self._published_at.setdefault((model, head.link), []).append(head)
            known = sessions.get((model, head.session))
            if known is None or known.turn < head.turn:
                sessions[model, head.session] = head
        self._reports[node] = _Report(asked_at, told, heads, sessions)

    def forget(self, node: str) -> None:
        """The node has left, or its newest report is another."""
        old = self._reports.pop(node, None)
        for model, head in old.heads if old else ():
            _take(self._published_at, (model, head.link), head)

    def relayed(self, node: str, model: str, head: Head, now: float) -> None:
        """A turn that this node relayed has ended at `node`."""
        known = self._relayed.setdefault((model, head.session), _Relayed(node, now, []))
        known.node, known.at = node, now
        known.heads.insert(0, head)
        self._relayed_at.setdefault((model, head.link), []).append(head)
        for old in known.heads[REMEMBERED_POINTS:]:
            _take(self._relayed_at, (model, old.link), old)
        del known.heads[REMEMBERED_POINTS:]
        self._relayed.move_to_end((model, head.session))
        if len(self._relayed) > RELAYED_LIMIT:
            (model, _), oldest = self._relayed.popitem(last=False)
            for old in oldest.heads:
                _take(self._relayed_at, (model, old.link), old)

    def match(self, model: str, chain: Chain) -> Match | None:
        """The longest earlier request that this one extends, and that got the reply which this one repeats."""
        for place in range(len(chain.links) - 2, -1, -1):
            key = (model, chain.links[place])
            found = (*self._relayed_at.get(key, ()), *self._published_at.get(key, ()))
            if not found:
                continue
            mark = chain.mark(place + 1)
            fitting = [head for head in found if head.mark.fits(mark)]
            if fitting:
                best = min(fitting, key=lambda head: (head.kind is not Kind.LIVE, -head.turn, head.session))
                return Match(best.session, place)
        return None

    def known(self, model: str, session: str) -> bool:
        """Whether an earlier turn of the session was served somewhere."""
        key = (model, session)
        return key in self._relayed or any(key in report.sessions for report in self._reports.values())

    def at(self, node: str, model: str, session: str) -> Head | None:
        """What a node holds of a session; None: nothing that is known."""
        report, relayed = self._reports.get(node), self._relayed.get((model, session))
        published = report.sessions.get((model, session)) if report else None
        # What was relayed there after the report was asked for is not in it yet.
        if relayed is not None and relayed.node == node and (report is None or relayed.at >= report.asked_at):
            newest = relayed.heads[0]
            return newest if published is None or published.turn < newest.turn else published
        return published

    def newest_turn(self, model: str, session: str) -> int:
        """The newest turn that somebody is known to have served, 0 for none."""
        key, relayed = (model, session), self._relayed.get((model, session))
        told = [head.turn for report in self._reports.values() if (head := report.sessions.get(key)) is not None]
        return max([*told, relayed.heads[0].turn if relayed else 0])

    def published_turn(self, model: str, session: str) -> int:
        """The newest turn that another node has in an engine or as a replica, as it says; 0 for none."""
        heads = (report.sessions.get((model, session)) for report in self._reports.values())
        return max((head.turn for head in heads if head is not None), default=0)

    def drop(self, session: str) -> None:
        """Keep nothing of a session that this node relayed. What others publish of it is theirs to take back."""
        for key in [key for key in self._relayed if key[1] == session]:
            for head in self._relayed.pop(key).heads:
                _take(self._relayed_at, (key[0], head.link), head)


def _take(index: dict[tuple[str, int], list[Head]], key: tuple[str, int], head: Head) -> None:
    index[key].remove(head)
    if not index[key]:
        del index[key]

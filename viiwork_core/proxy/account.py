"""Accounts: what became of each of the last requests, and why. In memory, without a word of any prompt or answer.

An account refers to the frozen values that the choice was made with. Nothing is put into words until somebody asks.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from viiwork_core.clock import Clock
from viiwork_core.contracts.policy import Candidate, Query
from viiwork_core.kvshare.turns import Usage
from viiwork_core.proxy.exchange import Exchange, Try
from viiwork_core.proxy.request import InferenceRequest
from viiwork_core.routing.choice import Choice
from viiwork_core.routing.sessions import Found
from viiwork_core.routing.ticket import Ticket

REMEMBERED: Final = 1000
"""Requests, the last ones."""

SHOWN_OF_SESSION: Final = 12
"""Characters of a session's hash that tell it from another, and are of no use to anybody else."""

LONGEST_REASON: Final = 500

_ENGINE_SAYS = re.compile(r"(?<=the engine failed): .*", re.DOTALL)
"""Some engines quote the request that they could not read."""

Why = Callable[[str, Query, Sequence[Candidate], str], tuple[str, Mapping[str, float]]]
"""(policy, query, candidates, which) -> in a few words why it was ranked first, and the prices of the candidates."""


class End(msgspec.Struct, frozen=True, gc=False):
    """How a request ended."""

    status: int
    reason: str | None
    """Why it was not served to its end."""

    seconds: float


class Account(msgspec.Struct, frozen=True):
    """What is kept of one request: nothing of its body."""

    id: str
    at: float
    """Unix seconds at which it came."""

    began: float
    """The same, monotonic."""

    path: str
    alias: str | None
    stream: bool
    query: Query
    found: Found
    hop: bool
    """Another node chose this one for it, and keeps the account of that."""

    ticket: Ticket | None
    tries: Sequence[Try]
    backend: str | None
    peer: str | None
    queued_s: float
    first_token_s: float | None
    usage: Usage
    end: End | None
    """None: it waits or runs."""

    @classmethod
    def of(cls, exchange: Exchange, coming: Coming, end: End | None) -> Account:
        """The account of an exchange as it is now."""
        request: InferenceRequest = exchange.request
        return cls(
            id=request.id,
            at=coming.at,
            began=coming.began,
            path=request.path,
            alias=request.alias,
            stream=request.stream,
            query=request.query,
            found=Found.FORWARD if coming.hop and request.query.session is not None else request.found,
            hop=coming.hop,
            ticket=exchange.ticket,
            tries=exchange.tries,
            backend=exchange.backend,
            peer=exchange.peer,
            queued_s=exchange.queued_s,
            first_token_s=exchange.first_token_s,
            usage=exchange.usage,
            end=end,
        )


class Coming(msgspec.Struct, frozen=True, gc=False):
    """When a request came, and from whom."""

    at: float
    began: float
    hop: bool


class Accounts:
    """The accounts of one node: of the requests that are under way, and of the last that are over. On the data loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._over: OrderedDict[str, Account] = OrderedDict()
        self._under_way: dict[str, tuple[Exchange, Coming]] = {}

    def began(self, exchange: Exchange, *, hop: bool, before: float) -> None:
        """A request was read, that came `before` seconds ago."""
        coming = Coming(self._clock.wall() - before, self._clock.monotonic() - before, hop)
        self._under_way[exchange.request.id] = exchange, coming

    def ended(self, exchange: Exchange, end: End) -> None:
        """The request is over. Of several with the same id, the last one to end is remembered."""
        known = self._under_way.get(exchange.request.id)
        if known is None or known[0] is not exchange:
            return
        del self._under_way[exchange.request.id]
        self._over.pop(exchange.request.id, None)
        self._over[exchange.request.id] = Account.of(exchange, known[1], end)
        if len(self._over) > REMEMBERED:
            self._over.popitem(last=False)

    def under_way(self) -> dict[str, Account]:
        """The requests that are not over, by id, in the order in which they came."""
        return {rid: Account.of(*known, None) for rid, known in self._under_way.items()}

    def find(self, rid: str) -> Account | None:
        """A request's account; None: it never came here, or too long ago."""
        known = self._under_way.get(rid)
        return self._over.get(rid) if known is None else self._so_far(Account.of(*known, None))

    def _so_far(self, account: Account) -> Account:
        """With the wait that is not over yet."""
        if account.ticket is None or _state(account) != "waiting":
            return account
        ticket = account.ticket
        return replace(account, queued_s=ticket.waited + self._clock.monotonic() - ticket.queued_at)


# In words


def told(account: Account, node: str, why: Why) -> dict[str, Any]:
    """An account as JSON has it. A figure that is not known is absent; times are milliseconds."""
    query, usage, ticket = account.query, account.usage, account.ticket
    return _known(
        request_id=account.id,
        node=node,
        at=round(account.at, 3),
        model=query.model,
        alias=account.alias,
        path=account.path,
        stream=account.stream,
        forwarded_here=True if account.hop else None,
        session=_session(account),
        prompt_tokens_estimated=query.prompt_tokens,
        pin=ticket.pin if ticket else None,
        prefer=list(ticket.prefer) or None if ticket else None,
        state=_state(account),
        queued_ms=round(account.queued_s * 1000),
        held_out=_choice(ticket.held_out, account, why) if ticket and ticket.held_out else None,
        choices=[_choice(choice, account, why) for choice in ticket.choices] if ticket else None,
        tries=[_try(one) for one in account.tries],
        backend=account.backend,
        peer=account.peer,
        first_token_ms=_ms(account.first_token_s),
        prompt_tokens=usage.prompt,
        cached_tokens=usage.cached,
        completion_tokens=usage.completion,
        status=account.end.status if account.end else None,
        reason=in_our_words(account.end.reason) if account.end and account.end.reason else None,
        total_ms=_ms(account.end.seconds) if account.end else None,
    )


def _session(account: Account) -> dict[str, Any]:
    query = account.query
    if query.session is None:
        return {"found": str(Found.NONE)}
    return {
        "found": str(account.found),
        "hash": query.session[:SHOWN_OF_SESSION],
        "begins": query.begins,
        "continues": query.continues,
    }


def _state(account: Account) -> str:
    if account.end is not None:
        return "over"
    return "running" if account.backend or account.peer else "waiting"


def _choice(choice: Choice, account: Account, why: Why) -> dict[str, Any]:
    rule, prices = _rule(choice, account, why)
    ranks = {place: rank for rank, place in enumerate(choice.ranking, start=1)}
    ordered = sorted(choice.candidates, key=lambda one: (ranks.get(one.id, len(ranks) + 1), one.id))
    return _known(
        after_ms=_ms(choice.at - account.began),
        chosen=choice.chosen,
        policy=choice.by,
        rule=rule,
        candidates=[_candidate(one, choice.query, ranks.get(one.id), prices.get(one.id)) for one in ordered],
        full=[_candidate(one, choice.query, None, None) for one in choice.query.full] or None,
    )


def _rule(choice: Choice, account: Account, why: Why) -> tuple[str, Mapping[str, float]]:
    if choice.by is None:
        return "the client prefers it", {}
    if not choice.ranking:
        return "to wait for the full place that holds the session is better than any of these", _prices(choice, why)
    rule, prices = why(choice.by, choice.query, choice.candidates, choice.ranking[0])
    rule = rule or f"{choice.by} ranks it first"
    if account.ticket is not None and account.ticket.pin is not None:
        rule = "the client asks for it alone"
    elif len(choice.candidates) == 1:
        rule = "the only place with room"
    if choice.chosen is None:
        rule = f"none of these took it; first of them: {rule}"
    elif choice.chosen != choice.ranking[0]:
        rule = f"{choice.ranking[0]} did not take it; it was first: {rule}"
    return rule, prices


def _prices(choice: Choice, why: Why) -> Mapping[str, float]:
    assert choice.by is not None
    return why(choice.by, choice.query, choice.candidates, choice.candidates[0].id)[1]


def _candidate(place: Candidate, query: Query, rank: int | None, price: float | None) -> dict[str, Any]:
    score = place.score or query.typical
    uncached = max(0, query.prompt_tokens - (place.held_tokens or 0))
    predicted = None if score is None else score.first_token_ms(uncached) + (place.rtt_ms or 0.0)
    return _known(
        id=place.id,
        rank=rank,
        free=place.free,
        slots=place.slots,
        predicted_ms=None if predicted is None else round(predicted),
        price_ms=None if price is None else round(price),
        measured=place.score is not None,
        held_tokens=place.held_tokens,
        replica_tokens=place.replica_tokens,
        rtt_ms=None if place.rtt_ms is None else round(place.rtt_ms, 1),
        waiting=place.waiting,
        wait_ms=_finite(place.wait_ms),
        crowd_ms=_finite(place.crowd_ms),
    )


def _try(one: Try) -> dict[str, Any]:
    return {"place": one.place, "ms": _ms(one.seconds), "reason": in_our_words(one.reason)}


def in_our_words(reason: str) -> str:
    """A reason in the node's words alone: some engines quote what they were asked."""
    return _ENGINE_SAYS.sub("", reason)[:LONGEST_REASON]


def _finite(ms: float) -> int | None:
    """Not where there is none, nor where it is not known."""
    return round(ms) if 0 < ms < float("inf") else None


def _ms(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1000)


def _known(**fields: object) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def whole(found: Iterable[dict[str, Any]]) -> dict[str, Any] | None:
    """The account of the node that chose, out of several nodes' accounts of one request; None: there is none."""
    return min(found, key=lambda one: bool(one.get("forwarded_here")), default=None)

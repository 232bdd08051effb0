"""What is told when a request is over: a line in the log, the figures, the activity log, and the policy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from viiwork_core.contracts.policy import Outcome
from viiwork_core.observe.events import End
from viiwork_core.observe.metrics import Ended
from viiwork_core.observe.request_log import RequestLog
from viiwork_core.observe.traces import Traces
from viiwork_core.proxy.account import in_our_words
from viiwork_core.proxy.exchange import Exchange
from viiwork_core.web.prompts import Prompts
from viiwork_core.web.tracing import ending

CLIENT_GONE = 499
"""Status that logs and outcomes give a request whose client left; it is never sent."""

_log = RequestLog()


@dataclass(frozen=True, slots=True)
class Outcomes:
    """Tells of requests that are over. On the data loop."""

    observe: Callable[[Outcome], None] | None
    """The policy's; None: it learns nothing."""

    learn: Callable[[Exchange, bool], None]
    """The node's; with whether another node sent the request."""

    count: Callable[[Ended], None]
    knows: Callable[[str], bool]
    """Whether some node serves a model: names that clients make up are neither counted by name nor told."""

    record: Callable[[Exchange, float], None] = lambda *_: None
    """Takes what a client of this node was answered, and how many seconds after it asked."""

    charge: Callable[[Exchange, bool], None] = lambda *_: None
    """Takes what an API key's request used on this node's engines, and whether its client left before the end."""

    traces: Traces | None = None
    """None: traces are off."""

    prompts: Prompts | None = None
    """None: nothing is kept of what clients ask."""

    def unread(self, rid: str, status: int, reason: str | None, seconds: float) -> None:
        """A request that was refused, or left, before it could be read."""
        _log.tell(request_id=rid, status=status, reason=reason, total_ms=round(seconds * 1000))
        self.count(Ended("", status, forwarded=False))

    def ended(self, exchange: Exchange, status: int, reason: str | None, seconds: float, *, hop: bool) -> None:
        """A request that was read. `hop`: another node sent it. `reason`: why it was not served to its end."""
        self._log(exchange, status, reason, seconds)
        model = exchange.request.query.model
        placed = exchange.backend is not None or exchange.peer is not None
        known = placed or self.knows(model)
        self.count(_figures(exchange, model if known else "", status, hop=hop))
        if exchange.trace is not None:
            cut = reason is not None and exchange.started
            exchange.trace.ended(ending(exchange, status, seconds, hop=hop, known=known, cut=cut))
        if known and exchange.trail is not None:
            exchange.trail.ended(_end(exchange, status, reason, placed=placed), seconds)
        if self.prompts is not None and not hop:
            self.prompts.ended(exchange, status, seconds)
        if placed and not hop and reason is None:
            self.record(exchange, seconds)
        if exchange.request.key and exchange.backend is not None:
            self.charge(exchange, status == CLIENT_GONE)
        if placed:
            self.learn(exchange, hop)
            if self.observe is not None:
                self.observe(_outcome(exchange, status))

    @staticmethod
    def _log(exchange: Exchange, status: int, reason: str | None, seconds: float) -> None:
        first_byte, key = exchange.first_byte_s, exchange.request.key
        _log.tell(
            request_id=exchange.request.id,
            **({"key": key} if key else {}),
            model=exchange.request.query.model,
            backend=exchange.backend,
            peer=exchange.peer,
            status=status,
            reason=reason and in_our_words(reason),
            queued_ms=round(exchange.queued_s * 1000),
            ttft_ms=None if first_byte is None else round(first_byte * 1000),
            total_ms=round(seconds * 1000),
            tokens_in=exchange.usage.prompt,
            tokens_cached=exchange.usage.cached,
            tokens_out=exchange.usage.completion,
        )


def _figures(exchange: Exchange, model: str, status: int, *, hop: bool) -> Ended:
    return Ended(
        model=model,
        status=status,
        forwarded=hop,
        backend=exchange.backend,
        peer=exchange.peer,
        # One that came from a member had no wait here, and one for an unknown model none at all.
        queued_s=None if hop or not model else exchange.queued_s,
        first_byte_s=exchange.first_byte_s,
        prompt_tokens=exchange.usage.prompt,
        cached_tokens=exchange.usage.cached,
        completion_tokens=exchange.usage.completion,
    )


def _end(exchange: Exchange, status: int, reason: str | None, *, placed: bool) -> End:
    if status == CLIENT_GONE:
        return "aborted by client"
    if not placed:
        return "refused"
    if exchange.finished and reason is None:
        return "done"
    return "aborted" if exchange.started else "failed"


def _outcome(exchange: Exchange, status: int) -> Outcome:
    candidate = exchange.peer or exchange.backend
    assert candidate is not None, "it was placed"
    return Outcome(
        model=exchange.request.query.model,
        candidate=candidate,
        session=exchange.request.query.session,
        status=status,
        prompt_tokens=exchange.usage.prompt,
        cached_tokens=exchange.usage.cached,
        completion_tokens=exchange.usage.completion,
        first_token_ms=None if exchange.first_token_s is None else exchange.first_token_s * 1000,
    )

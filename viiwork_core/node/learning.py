"""What a node learns from the answers that pass it: how fast its models are, and whose conversations they belong to."""

from __future__ import annotations

import random
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

import anyio.to_thread

from viiwork_core.clock import Clock
from viiwork_core.config.schema import Config
from viiwork_core.engines.slots import SlotBook
from viiwork_core.kvshare.caches import Caches
from viiwork_core.mesh.capacity import PeerView
from viiwork_core.mesh.report import HeadReport, ScoreReport
from viiwork_core.node.models import Models
from viiwork_core.node.speeds import Speeds
from viiwork_core.proxy.body import Body
from viiwork_core.proxy.exchange import Exchange
from viiwork_core.proxy.opening import hint, messages, opening
from viiwork_core.proxy.request import LARGE, Whose
from viiwork_core.routing.backends import LocalBackends
from viiwork_core.routing.candidates import Candidates
from viiwork_core.routing.conversation import Chain, Hashes
from viiwork_core.routing.heads import Conversations, Head, Kind, Told
from viiwork_core.routing.published import Place, Published
from viiwork_core.routing.sessions import Found, Sessions
from viiwork_core.security.ring import SecretRing
from viiwork_core.security.secret import SessionKeys

RESPONSES_LIMIT: Final = 4096
"""Responses whose conversation is remembered, for `previous_response_id`."""

BYTES_PER_TOKEN: Final = 4.0
"""Of a request's body, until answers tell how many tokens it has."""

RATIO_ALPHA: Final = 0.1

_chance = random.Random()  # noqa: S311  # names tell conversations apart and open nothing; a system call each is dear


@dataclass(frozen=True, slots=True)
class Learned:
    """What a capacity report says of one model."""

    score: ScoreReport | None
    service_s: float | None
    active: int
    heads: tuple[HeadReport, ...]
    import_ms_per_1k: float | None = None


NOTHING: Final = Learned(None, None, 0, ())
"""Of a model that nobody has asked for."""


def learning(config: Config, secret: SecretRing | None, models: Models, book: SlotBook, clock: Clock) -> Learning:
    """What a node of that configuration learns with."""
    speeds = Speeds(models, config.node.state_dir / "perf.json", clock)
    return Learning(config.node.name, speeds, SessionKeys(secret, mesh=config.mesh.name), book, clock)


class Learning:
    """On the data loop."""

    def __init__(self, node: str, speeds: Speeds, keys: SessionKeys, book: SlotBook, clock: Clock) -> None:
        self.speeds = speeds
        self._node = node
        self._keys = keys
        self._book = book
        self._clock = clock
        self._caches: Caches | None = None
        self._conversations = Conversations()
        self._published = Published()
        self._sessions = Sessions(self._conversations, lambda: f"{_chance.getrandbits(128):032x}")
        self._responses: OrderedDict[str, str] = OrderedDict()
        self._bytes_per_token: dict[str, float] = {}

    def follow(self, caches: Caches) -> None:
        """The book of what engines hold is this one."""
        self._caches = caches

    def candidates(self, local: LocalBackends) -> Candidates:
        """What the router knows of hosts."""
        return Candidates(
            local,
            self._conversations,
            self.speeds.score,
            self._service_s,
            self._active,
            self._replica_tokens,
            self._import_ms_per_1k,
        )

    def _replica_tokens(self, model: str, session: str) -> int | None:
        return self._caches.replica_tokens(model, session) if self._caches else None

    def _import_ms_per_1k(self, model: str) -> float | None:
        return self._caches.tally.import_ms_per_1k(model) if self._caches else None

    # What others tell

    def heard(self, view: PeerView) -> None:
        """A member's report."""
        told = [(model.name, model.heads) for model in view.report.models if model.heads]
        self._conversations.report(view.member.node, told, view.asked_at)
        if view.report.draining is True:
            self._adopt(told)

    def _adopt(self, told: Told) -> None:
        """A member takes no new work, and may soon be gone with what it says: of replicas here, this node tells on."""
        now = self._clock.monotonic()
        for model, heads in told:
            for head in heads:
                if self._replica_tokens(model, head.session) is not None:
                    self._published.adopt(model, Head.read(head), now)

    def elsewhere(self, model: str, session: str) -> int:
        """The newest turn of a session that another member has, as it says; 0 for none."""
        return self._conversations.published_turn(model, session)

    def forgot(self, node: str) -> None:
        """The member is gone."""
        self._conversations.forget(node)

    def forget(self, session: str) -> None:
        """Keep nothing of a session."""
        self._published.forget(session)
        self._conversations.drop(session)
        self._responses = OrderedDict((rid, of) for rid, of in self._responses.items() if of != session)

    # What requests are

    async def identify(self, path: str, model: str, body: Body, named: str | None) -> Whose:
        """Whose turn a request is. `named`: what the client calls its session."""
        chain = await self._chain(path, model, body)
        session = self._keys.session_key(named) if named else self._answered(body)
        said = hint(body) if session is None and chain is None else None
        hinted = self._keys.session_key(said) if said else None
        identity = self._sessions.identify(model, session, chain, hinted)
        link = chain.last if chain else None
        if identity is None:
            return Whose(link=link)
        if identity.continues and self._caches is not None:
            # Turns are counted on from the newest that any node is known to have served.
            self._caches.saw(identity.session, self._conversations.newest_turn(model, identity.session))
        if session is not None:
            found = Found.HEADER if named else Found.RESPONSE
        else:
            found = Found.HINT if hinted else Found.NEW if identity.begins else Found.CHAIN
        return Whose(identity.session, begins=identity.begins, continues=identity.continues, link=link, found=found)

    @property
    def _hashes(self) -> Hashes:
        """Keyed with the secret in use: when that changes, no earlier conversation is recognised any more."""
        return Hashes(self._keys.conversation_key())

    async def _chain(self, path: str, model: str, body: Body) -> Chain | None:
        found = messages(path, body)
        if not found:
            return None
        before = opening(path, model, body)
        if len(body.raw) > LARGE:
            return await anyio.to_thread.run_sync(self._hashes.chain, before, found)
        return self._hashes.chain(before, found)

    def _answered(self, body: Body) -> str | None:
        """The session of the response that this request goes on from."""
        earlier = body.get("previous_response_id")
        return self._responses.get(earlier) if isinstance(earlier, str) else None

    def prompt_tokens(self, model: str, size: int) -> int:
        """Estimated tokens of a body of `size` bytes."""
        return max(1, round(size / self._bytes_per_token.get(model, BYTES_PER_TOKEN)))

    # What answers teach

    def ended(self, exchange: Exchange, hop: bool) -> None:
        """A request is over. `hop`: another node sent it."""
        request, usage = exchange.request, exchange.usage
        model = request.query.model
        if exchange.backend is not None:
            self.speeds.scores.served(model, self._clock.monotonic() - exchange.granted_at)
        if exchange.status != 200 or usage.prompt is None:
            return
        if exchange.backend is not None:
            self._measure(exchange)
        ratio = max(0.5, len(request.body.raw) / usage.prompt) if usage.prompt else BYTES_PER_TOKEN
        known = self._bytes_per_token.get(model, ratio)
        self._bytes_per_token[model] = known + RATIO_ALPHA * (ratio - known)
        self._remember(exchange, hop=hop)

    def _measure(self, exchange: Exchange) -> None:
        """Only streams tell when their first token came."""
        usage, first = exchange.usage, exchange.first_token_at
        if not exchange.streams or first is None or usage.prompt is None:
            return
        uncached = usage.prompt - (usage.cached or 0)
        ms = (first - exchange.granted_at) * 1000
        self.speeds.scores.observe(
            exchange.request.query.model, uncached=uncached, first_token_ms=ms, now=self._clock.monotonic()
        )

    def _remember(self, exchange: Exchange, *, hop: bool) -> None:
        request, reply, now = exchange.request, exchange.reply, self._clock.monotonic()
        session, total = request.query.session, exchange.usage.total
        if session is None or reply is None or total is None:
            return
        # What shows no messages is known by its session alone.
        link = int(session[:16], 16) if request.link is None else request.link
        # What ran here was given its number then: by now the caches may count it already.
        turn = exchange.turn or (self._caches.turn_of(session) if self._caches else 0) + 1
        mark = self._hashes.mark(call=reply.call, text=reply.text)
        head = Head(link, mark, session, total, turn, backend=exchange.backend)
        model = request.query.model
        if exchange.peer is None:
            self._published.ended(model, head, now)
        if not hop:
            self._conversations.relayed(exchange.peer or self._node, model, head, now)
        if reply.id is not None and request.path == "/v1/responses":
            self._responses[reply.id] = session
            if len(self._responses) > RESPONSES_LIMIT:
                self._responses.popitem(last=False)

    # What others are told

    def learned(self, model: str) -> Learned:
        """What this node says of one of its models."""
        score = self.speeds.score(model)
        return Learned(
            score=None if score is None else ScoreReport(score.overhead_ms, score.ms_per_1k),
            service_s=self._service_s(model),
            active=self._active(model),
            import_ms_per_1k=self._import_ms_per_1k(model),
            heads=tuple(head.report() for head in self._published.heads(model, lambda one: self._where(model, one))),
        )

    def _service_s(self, model: str) -> float | None:
        return self.speeds.scores.service_s(model)

    def _active(self, model: str) -> int:
        return self._published.active(model, self._clock.monotonic())

    def _where(self, model: str, session: str) -> Place | None:
        if self._caches is None:
            return None
        held = [
            (found[1], view.id)
            for view in self._book.views()
            if view.model == model and (found := self._caches.held(view, session)) is not None
        ]
        if held:
            tokens, backend = max(held)
            return Place(Kind.LIVE, backend, tokens)
        replica = self._caches.replica_tokens(model, session)
        return None if replica is None else Place(Kind.REPLICA, None, replica)

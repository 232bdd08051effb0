"""The parts of a node, made in order and knowing each other, before any of them runs: the composition root."""

from __future__ import annotations

import random

from viiwork_core.clock import Clock, SystemClock
from viiwork_core.config.schema import Config
from viiwork_core.contracts.context import Context
from viiwork_core.engines.commands import Commands
from viiwork_core.engines.digest import Digests
from viiwork_core.engines.gpus.inventory import Inventory
from viiwork_core.engines.slots import SlotBook
from viiwork_core.engines.states import BackendView
from viiwork_core.kvshare.caches import Caches
from viiwork_core.node.addresses import Places
from viiwork_core.node.draining import Draining
from viiwork_core.node.figures import Figures
from viiwork_core.node.keyring import Keyring
from viiwork_core.node.learning import learning
from viiwork_core.node.ledger import Ledger
from viiwork_core.node.listening import Listening
from viiwork_core.node.models import Models
from viiwork_core.node.naming import Naming
from viiwork_core.node.narration import Narration, struck
from viiwork_core.node.news import News
from viiwork_core.node.plans import Planned, may_share, plan
from viiwork_core.node.records import Records
from viiwork_core.observe.events import EventLog
from viiwork_core.observe.metrics import Metrics
from viiwork_core.proxy.budget import BodyBudget
from viiwork_core.proxy.dispatch import Dispatcher
from viiwork_core.registry.guard import GuardedPolicy
from viiwork_core.registry.options import Resolved, ResolvedModel
from viiwork_core.routing.backends import Held, LocalBackends
from viiwork_core.routing.router import Router
from viiwork_core.security.ring import SecretRing


class Parts:
    """All parts of one node. The constructor starts nothing; node/opening does."""

    def __init__(
        self,
        config: Config,
        resolved: Resolved,
        places: Places,
        secret: SecretRing | None,
        commands: Commands,
        cards: Inventory,
    ) -> None:
        """`secret` None: an open mesh, or none. Raises ConfigError for models that cannot be run here."""
        self.config = config
        self.resolved = resolved
        self.places = places
        self.secret = secret
        self.cards = cards
        self.clock: Clock = SystemClock()
        self.node_id, self.started = commands.node_id, self.clock.monotonic()
        self.caches: Caches | None = None
        """None until the node is open."""

        self._commands, self._digests = commands, Digests(config.node.state_dir)
        self.models = Models(resolved.models, self._plan)
        self.book = SlotBook(self.clock)
        self.learning = learning(config, secret, self.models, self.book, self.clock)
        rng = random.Random()  # noqa: S311  # spreads load, keeps no secret
        policy = GuardedPolicy(resolved.policy(resolved.policy_options), clock=self.clock, on_strike=struck)
        self.local = LocalBackends(self.book, policy, rng, self._held)
        self.router = self._router(policy, rng)
        self.dispatcher = Dispatcher(self.router, self.clock, queue_timeout=config.routing.queue_timeout)
        self.budget = BodyBudget(config.api.max_inflight_bytes)
        self.events = EventLog(self.clock, history=config.activity.event_history)
        self.keyring = Keyring(config, places, self.router.reports, self.clock, secured=secret is not None)
        self.naming = Naming(config, self.router, self.book, self.events, self.clock)
        self.ledger = Ledger(config, secret, self.models, self.book, self.learning, self.clock)
        self.figures = self._figures()
        self.metrics = Metrics(self.figures.snapshot)
        self.records = Records(config, policy, self.learning, self.metrics, self.router, self.keyring, self.clock)
        self.news = self._news()
        self.listening = self._listening()
        self.draining = self._draining()

    @property
    def node(self) -> str:
        """The node's name."""
        return self.config.node.name

    def context(self, plugin: str) -> Context:
        """The core's services for a plugin's object; makes the folder that is the plugin's own."""
        folder = self.config.node.state_dir / "plugins" / plugin
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return Context(self.node, folder, self._commands.run, self._digests.of)

    def _plan(self, model: ResolvedModel) -> Planned:
        caches = self.config.node.state_dir / "kv" / "engines"
        share = may_share(model.config, in_mesh=self.places.in_mesh, secured=self.secret is not None)
        return plan(model, self.context, caches=caches, share=share, vendor=self.cards.vendor)

    def _held(self, view: BackendView, session: str) -> Held | None:
        found = self.caches.held(view, session) if self.caches else None
        return Held(slot=found[0], tokens=found[1]) if found else None

    def _router(self, policy: GuardedPolicy, rng: random.Random) -> Router:
        return Router(
            node=self.node,
            local=self.local,
            policy=policy,
            rng=rng,
            queue_max=self.config.routing.queue_max,
            stale_after=self.config.routing.stale_after,
            candidates=self.learning.candidates(self.local),
        )

    def _figures(self) -> Figures:
        return Figures(self.models, self.book, self.router, self.budget, self.keyring, lambda: self.caches, self.clock)

    def _news(self) -> News:
        narration = Narration(self.events, self.book)
        return News(self.router, self.learning, narration, self.naming, self.ledger, self.keyring, self.dispatcher)

    def _listening(self) -> Listening:
        listeners = [cls(options, self.context(cls.name)) for cls, options in self.resolved.listeners]
        return Listening(self.node, listeners, self.clock)

    def _draining(self) -> Draining:
        return Draining(
            self.node,
            self.local,
            self.book,
            self.records.accounts,
            self.learning,
            self.events,
            self.dispatcher.wake,
            self.clock,
        )

"""Opening a node: every part is made here, in order, and closed in the reverse one."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import Future
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from importlib.metadata import version

from viiwork_core.clock import Clock, SystemClock
from viiwork_core.config.schema import Config
from viiwork_core.contracts.context import Context
from viiwork_core.engines.commands import Commands
from viiwork_core.engines.control import ControlLoop, ended
from viiwork_core.engines.digest import Digests
from viiwork_core.engines.gpus.inventory import Inventory, detect
from viiwork_core.engines.leftovers import end_leftovers
from viiwork_core.engines.slots import SlotBook
from viiwork_core.engines.states import BackendView
from viiwork_core.kvshare.caches import Caches
from viiwork_core.node.addresses import Places
from viiwork_core.node.admission import access_at, claims_at, greetings_at, mode_of, secret_of
from viiwork_core.node.background import Background
from viiwork_core.node.bridge import Bridge
from viiwork_core.node.draining import Draining
from viiwork_core.node.figures import Figures
from viiwork_core.node.following import Following
from viiwork_core.node.identity import identity_file, new_node_id
from viiwork_core.node.keyring import Keyring
from viiwork_core.node.learning import learning
from viiwork_core.node.ledger import Ledger
from viiwork_core.node.listening import Listening
from viiwork_core.node.lock import locked
from viiwork_core.node.meshwork import Mesh, leave, open_mesh
from viiwork_core.node.models import Models
from viiwork_core.node.naming import Naming
from viiwork_core.node.narration import Narration, struck
from viiwork_core.node.news import News
from viiwork_core.node.outlook import open_outlook
from viiwork_core.node.plans import Planned, may_share, plan
from viiwork_core.node.records import Records
from viiwork_core.node.reload import Reload
from viiwork_core.node.sharing import open_sharing, take
from viiwork_core.node.targets import Targets
from viiwork_core.node.views import Views
from viiwork_core.observe.events import EventLog
from viiwork_core.observe.metrics import Metrics
from viiwork_core.proxy.budget import BodyBudget
from viiwork_core.proxy.dispatch import Dispatcher
from viiwork_core.proxy.entry import Entry, Receiver
from viiwork_core.proxy.execute import Executor
from viiwork_core.proxy.forward import Forwarder
from viiwork_core.proxy.upstream import Upstream
from viiwork_core.registry.guard import GuardedPolicy
from viiwork_core.registry.options import Resolved, ResolvedModel
from viiwork_core.routing.backends import Held, LocalBackends
from viiwork_core.routing.router import Router
from viiwork_core.security.ring import SecretRing
from viiwork_core.web.claims import Claims
from viiwork_core.web.inference import Inference
from viiwork_core.web.surface import Surface

GRACE = 10.0
"""Seconds that saves and sends may take when the node stops."""


@asynccontextmanager
async def open_node(
    config: Config, resolved: Resolved, places: Places, environ: Mapping[str, str], reload: Reload | None = None
) -> AsyncIterator[Surface]:
    """Open a node whose API listens at `places`, and close it in order: mesh, background work, engines.

    `reload` is heard from the moment that the node is open. None: its models stay as they are.
    Raises ConfigError for what cannot be started with.
    """
    secret = secret_of(config, environ) if places.in_mesh else None
    state_dir = config.node.state_dir
    state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    commands = Commands(new_node_id())
    # Never on uvloop: it closes a pipe's descriptor twice, and the second time it may be another thread's.
    vendor = await asyncio.to_thread(asyncio.run, detect(config.gpu.vendor, commands.run))
    cards = Inventory(vendor, commands.run, clock=SystemClock())
    async with Node(config, resolved, places, secret, commands, cards).open(reload) as surface:
        yield surface


class Node:
    """The parts of one node. The constructor does no I/O; `open` starts them."""

    def __init__(
        self,
        config: Config,
        resolved: Resolved,
        places: Places,
        secret: SecretRing | None,
        commands: Commands,
        cards: Inventory,
    ) -> None:
        self._config = config
        self._resolved = resolved
        self._places = places
        self._secret = secret
        self._clock: Clock = SystemClock()
        self._node_id, self._started = commands.node_id, self._clock.monotonic()
        self._commands, self._cards = commands, cards
        self._digests = Digests(config.node.state_dir)
        self._models = Models(resolved.models, self._plan)
        self._book = SlotBook(self._clock)
        rng = random.Random()  # noqa: S311  # spreads load, keeps no secret
        policy = GuardedPolicy(resolved.policy(resolved.policy_options), clock=self._clock, on_strike=struck)
        self._local = LocalBackends(self._book, policy, rng, self._held)
        self._learning = learning(config, secret, self._models, self._book, self._clock)
        self._router = Router(
            node=config.node.name,
            local=self._local,
            policy=policy,
            rng=rng,
            queue_max=config.routing.queue_max,
            stale_after=config.routing.stale_after,
            candidates=self._learning.candidates(self._local),
        )
        self._dispatcher = Dispatcher(self._router, self._clock, queue_timeout=config.routing.queue_timeout)
        self._caches: Caches | None = None
        self._budget = BodyBudget(config.api.max_inflight_bytes)
        self._keyring = Keyring(config, places, self._router.reports, self._clock, secured=secret is not None)
        self._figures = Figures(
            self._models, self._book, self._router, self._budget, self._keyring, lambda: self._caches, self._clock
        )
        self._metrics = Metrics(self._figures.snapshot)
        self._records = Records(config, policy, self._learning, self._metrics, self._router, self._keyring, self._clock)
        self._events = EventLog(self._clock, history=config.activity.event_history)
        self._narration = Narration(self._events, self._book)
        self._ledger = Ledger(config, secret, self._models, self._book, self._learning, self._clock)
        self._naming = Naming(config, self._router, self._book, self._events, self._clock)
        self._news = News(
            self._router, self._learning, self._narration, self._naming, self._ledger, self._keyring, self._dispatcher
        )
        listeners = [cls(options, self._context(cls.name)) for cls, options in resolved.listeners]
        self._listening = Listening(config.node.name, listeners, self._clock)
        self._draining = Draining(
            config.node.name,
            self._local,
            self._book,
            self._records.accounts,
            self._learning,
            self._events,
            self._dispatcher.wake,
            self._clock,
        )

    def _plan(self, model: ResolvedModel) -> Planned:
        caches = self._config.node.state_dir / "kv" / "engines"
        share = may_share(model.config, in_mesh=self._places.in_mesh, secured=self._secret is not None)
        return plan(model, self._context, caches=caches, share=share, vendor=self._cards.vendor)

    def _context(self, plugin: str) -> Context:
        folder = self._config.node.state_dir / "plugins" / plugin
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return Context(self._config.node.name, folder, self._commands.run, self._digests.of)

    def _held(self, view: BackendView, session: str) -> Held | None:
        found = self._caches.held(view, session) if self._caches else None
        return Held(slot=found[0], tokens=found[1]) if found else None

    @asynccontextmanager
    async def open(self, reload: Reload | None) -> AsyncIterator[Surface]:
        """Start everything, yield what the web layer needs, and stop everything."""
        async with AsyncExitStack() as stack:
            lock = stack.enter_context(locked(self._config.node.state_dir))
            if lock.before is not None:
                await end_leftovers(lock.before)
            lock.sign(self._node_id)
            await self._naming.open()
            await self._keyring.open()
            await self._ledger.open()
            self._learning.speeds.open()
            control = await stack.enter_async_context(ControlLoop())
            control.start(self._cards.run())
            bridge = Bridge(self._book, self._news.saw, self._cards)
            fleet = bridge.fleet(self._models.backends, self._config.health, node_id=self._node_id, clock=self._clock)
            engines = control.start(fleet.run())
            stack.push_async_callback(ended, engines)
            background = await stack.enter_async_context(Background(GRACE))
            upstream = await stack.enter_async_context(Upstream())
            mesh = await self._mesh(stack, control, background)
            self._naming.follow(mesh, background)
            self._keyring.follow(mesh, background)
            self._records.open(background, mesh)
            caches = self._caches = await self._sharing(control, background, mesh)
            self._learning.follow(caches)
            self._listening.follow(self._events, control)
            self._draining.follow(caches, background, ends=reload is not None)
            await self._ledger.follow(caches, mesh, background)
            background.serve(self._learning.speeds.run())
            following = Following(self._models, caches, fleet, control, background, self._learning.speeds.follow)
            # While the links to other members and the engines are still there.
            stack.push_async_callback(background.settle)
            executor = Executor(
                node=self._config.node.name,
                book=self._book,
                wires=self._models.wires,
                upstream=upstream,
                caches=caches,
                clock=self._clock,
                spawn=background.start,
                released=self._dispatcher.wake,
                poke=fleet.poke,
                first_byte_timeout=self._models.first_byte_timeout,
                score=self._learning.speeds.score,
            )
            stack.enter_context(identity_file(self._config, self._node_id, self._places.url))
            stack.callback(self._events.close)
            self._events.emit("system", f"{self._config.node.name} is up")
            if reload is not None:
                background.serve(reload.run(self._config, following.replace, self._keyring.reload))
            yield self._surface(executor, mesh, caches, following, background)

    # The mesh

    async def _mesh(self, stack: AsyncExitStack, control: ControlLoop, background: Background) -> Mesh | None:
        if not self._places.in_mesh:
            return None
        opening = open_mesh(
            self._config,
            self._places,
            self._node_id,
            self._secret,
            [cls(options, self._context(cls.name)) for cls, options in self._resolved.discoveries],
            control=control,
            clock=self._clock,
            publish=self._news.heard,
            forget=self._news.forgot,
            silent=self._router.silent,
        )
        mesh = await stack.enter_async_context(opening)
        background.serve(mesh.polls.run())
        return mesh

    # Caches that move

    async def _sharing(self, control: ControlLoop, background: Background, mesh: Mesh | None) -> Caches:
        return await open_sharing(
            self._config,
            self._models,
            self._secret,
            mesh,
            book=self._book,
            control=control,
            background=background,
            target=Targets(lambda: self._router, self._clock).choose,
            clock=self._clock,
            score=self._learning.speeds.score,
            buried=self._ledger.buried,
        )

    # What the web layer gets

    def _surface(
        self, executor: Executor, mesh: Mesh | None, caches: Caches, following: Following, background: Background
    ) -> Surface:
        views = self._views(mesh)
        claims = claims_at(self._config, self._secret, mesh, node_id=self._node_id, clock=self._clock)
        return Surface(
            node=self._config.node.name,
            inference=self._inference(executor, mesh, claims, caches),
            endpoints=self._models.endpoints,
            claims=claims,
            access=access_at(self._config, claims, self._keyring.ring, clock=self._clock),
            capacity=views.capacity,
            models=views.records,
            status=views.status,
            health=views.health,
            metrics=self._metrics.of(views.figures),
            why=self._records.why,
            prompts=self._records.prompts,
            events=self._events,
            park=following.park,
            drain=self._draining,
            take_replica=partial(take, caches, self._config, self._secret),
            aliases=self._naming,
            keys=self._keyring,
            kv=self._ledger,
            outlook=open_outlook(self._config, views, mesh, self._events, background),
            greetings=greetings_at(self._config, claims, node_id=self._node_id, age_s=views.age_s),
            refusal=mesh.arrival.refusal if mesh else Future(),
            leave=partial(leave, self._config.node.name, self._events, mesh),
        )

    def _inference(self, executor: Executor, mesh: Mesh | None, claims: Claims, caches: Caches) -> Inference:
        entry = Entry(
            router=self._router,
            dispatcher=self._dispatcher,
            book=self._book,
            executor=executor,
            forwarder=self._forwarder(mesh, caches) if mesh else None,
            clock=self._clock,
            queue_timeout=self._config.routing.queue_timeout,
            forward_retry=self._config.routing.forward_retry,
        )
        return Inference(
            entry=entry,
            receiver=Receiver(local=self._local, executor=executor),
            claims=claims,
            saw=caches.saw,
            identify=self._learning.identify,
            prompt_tokens=self._learning.prompt_tokens,
            max_body=self._config.api.max_body,
            budget=self._budget,
            stream_wait=self._config.api.stream_wait,
            clock=self._clock,
            events=self._events,
            outcomes=self._records.outcomes,
            accounts=self._records.accounts,
            node=self._config.node.name,
            resolve=self._naming.resolve,
            admit=self._keyring.admit,
        )

    def _forwarder(self, mesh: Mesh, caches: Caches) -> Forwarder:
        return Forwarder(node=self._config.node.name, links=mesh.links, turn_of=caches.turn_of, clock=self._clock)

    def _views(self, mesh: Mesh | None) -> Views:
        return Views(
            node=self._config.node.name,
            node_id=self._node_id,
            version=version("viiwork"),
            api_port=self._places.port,
            models=self._models,
            book=self._book,
            router=self._router,
            draining=self._draining.drains,
            prompts=self._config.activity.prompts,
            listeners=self._listening.told,
            members=mesh.membership.members if mesh else tuple,
            gpus=self._cards.gpus,
            clock=self._clock,
            started=self._started,
            naming=self._naming,
            keyring=self._keyring,
            ledger=self._ledger,
            learned=self._learning.learned,
            mesh=mode_of(mesh, self._secret),
            totals=self._metrics.totals,
            kv_share=self._figures.kv_share,
            address=lambda: mesh.arrival.host if mesh else None,
        )

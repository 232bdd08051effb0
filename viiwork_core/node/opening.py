"""Opening a node: every part is made here, in order, and closed in the reverse one."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager, suppress
from importlib.metadata import version

import structlog

from viiwork_core.clock import Clock, SystemClock
from viiwork_core.config.schema import Config
from viiwork_core.contracts.context import Context
from viiwork_core.engines.commands import Commands
from viiwork_core.engines.control import ControlLoop
from viiwork_core.engines.digest import Digests
from viiwork_core.engines.fleet import Fleet, HealthSettings
from viiwork_core.engines.slots import SlotBook
from viiwork_core.engines.states import BackendView
from viiwork_core.kvshare.caches import Caches
from viiwork_core.kvshare.replicas import ReplicaStore
from viiwork_core.kvshare.sending import Sender
from viiwork_core.mesh.capacity import PeerView
from viiwork_core.mesh.member import LocalMember, Member
from viiwork_core.mesh.report import KvReport
from viiwork_core.node import delivery
from viiwork_core.node.addresses import Places
from viiwork_core.node.background import Background
from viiwork_core.node.identity import identity_file, new_node_id
from viiwork_core.node.meshwork import Mesh, open_mesh
from viiwork_core.node.plans import Planned, plan
from viiwork_core.node.views import Views
from viiwork_core.proxy.dispatch import Dispatcher
from viiwork_core.proxy.entry import Entry, Receiver
from viiwork_core.proxy.execute import Executor
from viiwork_core.proxy.forward import Forwarder
from viiwork_core.proxy.upstream import Upstream
from viiwork_core.registry.guard import GuardedPolicy
from viiwork_core.registry.options import Resolved
from viiwork_core.routing.backends import Held, LocalBackends
from viiwork_core.routing.router import Router
from viiwork_core.security.secret import MeshSecret, SessionKeys, load_secret
from viiwork_core.security.signing import Verifier
from viiwork_core.web.claims import Claims
from viiwork_core.web.inference import Inference
from viiwork_core.web.surface import Surface

OPENAI_PATHS = frozenset(("/v1/chat/completions", "/v1/completions", "/v1/embeddings"))
"""Taken by every node, whatever its own engines serve: a peer may have the model."""

GRACE = 10.0
"""Seconds that saves and sends may take when the node stops."""

_log = structlog.get_logger("viiwork.node")


@asynccontextmanager
async def open_node(
    config: Config, resolved: Resolved, places: Places, environ: Mapping[str, str]
) -> AsyncIterator[Surface]:
    """Open a node whose API listens at `places`, and close it in order: mesh, background work, engines.

    Raises ConfigError for what cannot be started with.
    """
    secret = None
    if places.mesh_host is not None:
        secret = load_secret(environ, variable=config.mesh.secret_env, open_mesh=config.mesh.open)
    state_dir = config.node.state_dir
    state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    async with Node(config, resolved, places, secret).open() as surface:
        yield surface


class Node:
    """The parts of one node. The constructor does no I/O; `open` starts them."""

    def __init__(self, config: Config, resolved: Resolved, places: Places, secret: MeshSecret | None) -> None:
        self._config = config
        self._resolved = resolved
        self._places = places
        self._secret = secret
        self._clock: Clock = SystemClock()
        self._node_id = new_node_id()
        self._started = self._clock.monotonic()
        self._commands = Commands(self._node_id)
        self._digests = Digests(config.node.state_dir)
        self._models = [self._plan(index) for index in range(len(resolved.models))]
        self._book = SlotBook(self._clock)
        rng = random.Random()  # noqa: S311  # spreads load, keeps no secret
        policy = GuardedPolicy(resolved.policy(resolved.policy_options), clock=self._clock, on_strike=_struck)
        self._policy = policy
        self._local = LocalBackends(self._book, policy, rng, self._held)
        self._router = Router(
            node=config.node.name,
            local=self._local,
            policy=policy,
            rng=rng,
            queue_max=config.routing.queue_max,
            stale_after=config.routing.stale_after,
        )
        self._dispatcher = Dispatcher(self._router, self._clock, queue_timeout=config.routing.queue_timeout)
        self._caches: Caches | None = None

    def _plan(self, index: int) -> Planned:
        caches = self._config.node.state_dir / "kv" / "engines"
        return plan(self._resolved.models[index], self._context, caches=caches, share=self._secret is not None)

    def _context(self, plugin: str) -> Context:
        folder = self._config.node.state_dir / "plugins" / plugin
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return Context(self._config.node.name, folder, self._commands.run, self._digests.of)

    def _held(self, view: BackendView, session: str) -> Held | None:
        found = self._caches.held(view, session) if self._caches else None
        return Held(slot=found[0], tokens=found[1]) if found else None

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Surface]:
        """Start everything, yield what the web layer needs, and stop everything."""
        async with AsyncExitStack() as stack:
            control = await stack.enter_async_context(ControlLoop())
            fleet = self._fleet()
            engines = control.start(fleet.run())
            stack.push_async_callback(_ended, engines)
            background = await stack.enter_async_context(Background(GRACE))
            upstream = await stack.enter_async_context(Upstream())
            mesh = await self._mesh(stack, control, background)
            caches = self._caches = await self._sharing(control, background, mesh)
            executor = Executor(
                node=self._config.node.name,
                book=self._book,
                wires={model.name: model.wire for model in self._models},
                upstream=upstream,
                caches=caches,
                clock=self._clock,
                spawn=background.start,
                released=self._dispatcher.wake,
                poke=fleet.poke,
            )
            stack.enter_context(self._identity())
            yield self._surface(executor, mesh, caches)

    def _fleet(self) -> Fleet:
        health = self._config.health
        settings = HealthSettings(
            interval=health.interval,
            timeout=health.timeout,
            max_failures=health.max_failures,
            respawn_grace=health.respawn_grace,
            max_respawns=health.max_respawns,
        )
        loop = asyncio.get_running_loop()
        plans = [backend for model in self._models for backend in model.backends]

        def publish(view: BackendView) -> None:
            loop.call_soon_threadsafe(self._saw, view)

        return Fleet(plans, health=settings, node_id=self._node_id, clock=self._clock, publish=publish)

    def _saw(self, view: BackendView) -> None:
        self._book.see(view)
        self._dispatcher.wake()

    # The mesh

    async def _mesh(self, stack: AsyncExitStack, control: ControlLoop, background: Background) -> Mesh | None:
        if self._places.mesh_host is None:
            return None
        opening = open_mesh(
            self._config,
            self._member(self._places.mesh_host),
            self._secret,
            [cls(options, self._context(cls.name)) for cls, options in self._resolved.discoveries],
            control=control,
            clock=self._clock,
            publish=self._heard,
            forget=self._forgot,
        )
        mesh = await stack.enter_async_context(opening)
        background.serve(mesh.polls.run())
        return mesh

    def _member(self, host: str) -> LocalMember:
        direct = next((m.kv_share.address for m in self._config.models if m.kv_share and m.kv_share.address), None)
        port = self._places.port
        return LocalMember(
            node=self._config.node.name,
            node_id=self._node_id,
            host=host,
            gossip_port=self._config.mesh.bind_port,
            api_port=port,
            kv_address=(f"[{direct}]:{port}" if ":" in direct else f"{direct}:{port}") if direct else None,
        )

    def _heard(self, view: PeerView) -> None:
        self._router.report(view)
        self._dispatcher.wake()

    def _forgot(self, node: str) -> None:
        self._router.forget(node)
        self._dispatcher.wake()

    # Caches that move

    async def _sharing(self, control: ControlLoop, background: Background, mesh: Mesh | None) -> Caches:
        shared = {model.name: model.shared for model in self._models if model.shared is not None}
        store: ReplicaStore | None = None
        sender: Sender[Member] | None = None
        if shared and mesh is not None and self._secret is not None:
            room = int(sum(m.kv_share.max_gib for m in self._config.models if m.kv_share) * (1 << 30))
            folder = self._config.node.state_dir / "kv" / "replicas"
            store = await asyncio.to_thread(ReplicaStore(folder, room, self._clock).open)
            links = mesh.links
            sender = Sender(
                lambda member, stream: delivery.upload(links, member, stream),
                self._secret.replica,
                self._clock,
                max_bytes=room,
                ended=delivery.told,
            )
            background.serve(sender.run())
        return Caches(
            shared,
            slotted={model.name: model.wire.slot_field is not None for model in self._models},
            book=self._book,
            store=store,
            sender=sender,
            control=control,
            target=self._target,
            clock=self._clock,
        )

    def _target(self, model: str, session: str, group: str, fingerprint: str) -> Member | None:
        return delivery.target(self._router, self._clock, model, session, KvReport(group, fingerprint))

    async def _take(self, chunks: AsyncIterator[bytes]) -> None:
        assert self._caches is not None, "the surface is handed out after the caches were made"
        assert self._secret is not None, "an upload is proven before it is read"
        await self._caches.take(chunks, self._secret.replica)

    # What the web layer gets

    def _surface(self, executor: Executor, mesh: Mesh | None, caches: Caches) -> Surface:
        views = self._views(mesh)
        claims = self._claims(mesh)
        return Surface(
            inference=self._inference(executor, mesh, claims, caches),
            endpoints=OPENAI_PATHS.union(*(model.wire.endpoints for model in self._models)),
            claims=claims,
            capacity=views.capacity,
            models=views.openai_models,
            status=views.status,
            health=views.health,
            take_replica=self._take,
            leave=mesh.membership.leave if mesh else _nothing,
        )

    def _claims(self, mesh: Mesh | None) -> Claims:
        verifier = None
        if self._secret is not None:
            verifier = Verifier(self._secret.signature, node_id=self._node_id, clock=self._clock)

        def address_of(node: str) -> str | None:
            members = mesh.membership.members() if mesh else ()
            return next((member.host for member in members if member.node == node), None)

        return Claims(verifier, address_of)

    def _inference(self, executor: Executor, mesh: Mesh | None, claims: Claims, caches: Caches) -> Inference:
        node = self._config.node.name
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
            session_key=SessionKeys(self._secret, mesh=self._config.mesh.name).session_key,
            max_body=self._config.api.max_body,
            clock=self._clock,
            observe=self._policy.observe,
        )

    def _forwarder(self, mesh: Mesh, caches: Caches) -> Forwarder:
        return Forwarder(node=self._config.node.name, links=mesh.links, turn_of=caches.turn_of, clock=self._clock)

    def _views(self, mesh: Mesh | None) -> Views:
        mode = "none" if mesh is None else "secured" if self._secret else "open"
        return Views(
            node=self._config.node.name,
            node_id=self._node_id,
            version=version("viiwork"),
            api_port=self._places.port,
            models=self._models,
            book=self._book,
            router=self._router,
            members=mesh.membership.members if mesh else tuple,
            clock=self._clock,
            started=self._started,
            mesh=mode,
        )

    def _identity(self) -> AbstractContextManager[None]:
        return identity_file(
            self._config.node.state_dir,
            node=self._config.node.name,
            node_id=self._node_id,
            api=self._places.url,
            version=version("viiwork"),
        )


async def _ended(work: Future[None]) -> None:
    """Cancel what runs on the control loop, and wait for its end."""
    work.cancel()
    with suppress(asyncio.CancelledError):
        await asyncio.wrap_future(work)


async def _nothing() -> None:
    return None


def _struck(message: str) -> None:
    _log.warning("policy strike", reason=message)

"""What an open node offers to the web layer, put together from its parts."""

from __future__ import annotations

from concurrent.futures import Future
from functools import partial
from importlib.metadata import version

from viiwork_core.kvshare.caches import Caches
from viiwork_core.node.admission import access_at, claims_at, greetings_at, mode_of
from viiwork_core.node.background import Background
from viiwork_core.node.following import Following
from viiwork_core.node.meshwork import Mesh, leave
from viiwork_core.node.outlook import open_outlook
from viiwork_core.node.parts import Parts
from viiwork_core.node.sharing import take
from viiwork_core.node.status import status_of
from viiwork_core.node.views import Views
from viiwork_core.proxy.entry import Entry, Receiver
from viiwork_core.proxy.execute import Executor
from viiwork_core.proxy.forward import Forwarder
from viiwork_core.web.claims import Claims
from viiwork_core.web.inference import Inference
from viiwork_core.web.surface import Surface


def surface_of(
    parts: Parts, executor: Executor, mesh: Mesh | None, caches: Caches, following: Following, background: Background
) -> Surface:
    """The surface of a node whose parts run. `mesh` None: a node on its own. Writes the operator's token."""
    views = _views(parts, mesh)
    claims = claims_at(parts.config, parts.secret, mesh, node_id=parts.node_id, clock=parts.clock)
    return Surface(
        node=parts.node,
        inference=_inference(parts, executor, mesh, claims, caches),
        endpoints=parts.models.endpoints,
        claims=claims,
        access=access_at(parts.config, claims, parts.keyring.ring, clock=parts.clock),
        capacity=views.capacity,
        models=views.records,
        status=partial(status_of, views),
        health=views.health,
        metrics=parts.metrics.of(views.figures),
        why=parts.records.why,
        prompts=parts.records.prompts,
        events=parts.events,
        park=following.park,
        drain=parts.draining,
        take_replica=partial(take, caches, parts.config, parts.secret),
        aliases=parts.naming,
        keys=parts.keyring,
        kv=parts.ledger,
        outlook=open_outlook(parts.config, views, mesh, parts.events, background),
        greetings=greetings_at(parts.config, claims, node_id=parts.node_id, age_s=views.age_s),
        refusal=mesh.arrival.refusal if mesh else Future(),
        leave=partial(leave, parts.node, parts.events, mesh),
    )


def _inference(parts: Parts, executor: Executor, mesh: Mesh | None, claims: Claims, caches: Caches) -> Inference:
    return Inference(
        entry=_entry(parts, executor, mesh, caches),
        receiver=Receiver(local=parts.local, executor=executor),
        claims=claims,
        saw=caches.saw,
        identify=parts.learning.identify,
        prompt_tokens=parts.learning.prompt_tokens,
        max_body=parts.config.api.max_body,
        budget=parts.budget,
        stream_wait=parts.config.api.stream_wait,
        clock=parts.clock,
        events=parts.events,
        outcomes=parts.records.outcomes,
        accounts=parts.records.accounts,
        node=parts.node,
        resolve=parts.naming.resolve,
        admit=parts.keyring.admit,
    )


def _entry(parts: Parts, executor: Executor, mesh: Mesh | None, caches: Caches) -> Entry:
    routing = parts.config.routing
    return Entry(
        router=parts.router,
        dispatcher=parts.dispatcher,
        book=parts.book,
        executor=executor,
        forwarder=_forwarder(parts, mesh, caches) if mesh else None,
        clock=parts.clock,
        queue_timeout=routing.queue_timeout,
        forward_retry=routing.forward_retry,
    )


def _forwarder(parts: Parts, mesh: Mesh, caches: Caches) -> Forwarder:
    return Forwarder(node=parts.node, links=mesh.links, turn_of=caches.turn_of, clock=parts.clock)


def _views(parts: Parts, mesh: Mesh | None) -> Views:
    return Views(
        node=parts.node,
        node_id=parts.node_id,
        version=version("viiwork"),
        api_port=parts.places.port,
        models=parts.models,
        book=parts.book,
        router=parts.router,
        draining=parts.draining.drains,
        prompts=parts.config.activity.prompts,
        listeners=parts.listening.told,
        members=mesh.membership.members if mesh else tuple,
        gpus=parts.cards.gpus,
        clock=parts.clock,
        started=parts.started,
        naming=parts.naming,
        keyring=parts.keyring,
        ledger=parts.ledger,
        learned=parts.learning.learned,
        mesh=mode_of(mesh, parts.secret),
        totals=parts.metrics.totals,
        kv_share=parts.figures.kv_share,
        address=lambda: mesh.arrival.host if mesh else None,
    )

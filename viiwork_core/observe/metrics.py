"""Figures for Prometheus: what has been counted since the node started, and what is so now.

Every series says its scope in its help: this node's own, or its view of its peers. docs/metrics.md lists them all. The
counts are plain numbers of the data loop, which makes counting a matter of microseconds; Prometheus' own library writes
them out. One registry a node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from viiwork_core.observe.family import OWN, PEERS, Buckets, family, histogram
from viiwork_core.observe.machine_figures import MachineFigures, machine

CONTENT_TYPE: Final = CONTENT_TYPE_PLAIN_0_0_4

QUEUE_WAIT_S: Final = (0.0, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 60)
"""Upper bounds of the wait's buckets. The first holds those that did not wait."""

TTFT_S: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
"""A long prompt on an old card is read for minutes."""


class Ended(msgspec.Struct, frozen=True, gc=False):
    """A request that is over, as far as it is counted."""

    model: str
    """"": none that is known here. A name that no node knows would be a series for each one that a client makes up."""

    status: int
    """499 for a client that left."""

    forwarded: bool
    """It came from another node."""

    backend: str | None = None
    """Of this node, where it ran last."""

    peer: str | None = None
    """The node where it ran last."""

    queued_s: float | None = None
    """None: it never asked for a place, or a member sent it, which never waits."""

    first_byte_s: float | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class ModelFigures:
    """A model and its room, here or at a peer."""

    model: str
    slots: int
    busy: int
    queued: int


@dataclass(frozen=True, slots=True)
class PeerFigures:
    """What a peer said last, `age_s` seconds ago."""

    node: str
    age_s: float
    models: Sequence[ModelFigures]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What is so now, and what others have counted."""

    models: Sequence[ModelFigures] = ()
    backends: Sequence[tuple[str, str, str]] = ()
    """(model, backend, state)"""

    states: Sequence[str] = ()
    """All states that there are."""

    peers: Sequence[PeerFigures] = ()
    replicas: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """(model, what became of them) -> replicas."""

    replica_bytes: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """(model, sent, sent_file or received) -> bytes."""

    replica_seconds: Mapping[tuple[str, str], float] = field(default_factory=dict)
    """(model, save, send or import) -> seconds."""

    turns: Mapping[tuple[str, str, str], int] = field(default_factory=dict)
    """(model, switch, reuse) -> turns of sessions that were not their first."""

    imports: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """(model, warmth) -> turns that followed an import."""

    body_bytes: int = 0
    key_requests: Mapping[str, int] = field(default_factory=dict)
    """API key -> requests of this node's clients."""

    key_tokens: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """(API key, prompt or completion) -> tokens on this node's engines."""


@dataclass(slots=True)
class Totals:
    """One model's, since the node started. Tokens: of what ran on this node's backends; None: no engine ever told."""

    requests: int = 0
    prompt: int | None = None
    cached: int | None = None
    completion: int | None = None

    @property
    def tokens(self) -> int | None:
        """Of prompts, reused ones included, and of answers."""
        known = [number for number in (self.prompt, self.completion) if number is not None]
        return sum(known) if known else None


class Metrics(Collector):
    """Counts, on the data loop. `snapshot` is asked at each scrape."""

    def __init__(self, snapshot: Callable[[], Snapshot]) -> None:
        self._snapshot = snapshot
        self._machine: Callable[[], MachineFigures] = MachineFigures
        self._requests: Counter[tuple[str, str, str, str]] = Counter()
        self._totals: dict[str, Totals] = {}
        self._waits: dict[str, Buckets] = {}
        self._first_bytes: dict[tuple[str, str], Buckets] = {}
        self.registry = CollectorRegistry()
        self.registry.register(self)

    def ended(self, request: Ended) -> None:
        """Count a request."""
        model, place = request.model, request.backend or (f"peer {request.peer}" if request.peer else "")
        origin = "member" if request.forwarded else "client"
        self._requests[model, str(request.status), place, origin] += 1
        if not model:
            return
        totals = self._totals.setdefault(model, Totals())
        totals.requests += 1
        if request.backend is not None:
            totals.prompt = _plus(totals.prompt, request.prompt_tokens)
            totals.cached = _plus(totals.cached, request.cached_tokens)
            totals.completion = _plus(totals.completion, request.completion_tokens)
        if request.queued_s is not None:
            self._waits.setdefault(model, Buckets(QUEUE_WAIT_S)).add(request.queued_s)
        if request.first_byte_s is not None:
            where = "peer" if request.peer else "here"
            self._first_bytes.setdefault((model, where), Buckets(TTFT_S)).add(request.first_byte_s)

    def totals(self, model: str) -> Totals:
        """A model's totals."""
        return self._totals.get(model, Totals())

    def of(self, machine: Callable[[], MachineFigures]) -> Callable[[], bytes]:
        """What writes all series, with what `machine` says of the node at each scrape."""
        self._machine = machine
        return self.text

    def text(self) -> bytes:
        """All series in Prometheus' text format."""
        return generate_latest(self.registry)

    # What the registry calls

    def describe(self) -> Iterable[Metric]:
        """The series without their values."""
        return (
            *machine(MachineFigures()),
            *_counted({}, {}),
            *_timed({}, {}),
            *_now(Snapshot()),
            *_keys(Snapshot()),
            *_caches(Snapshot()),
            *_peers(Snapshot()),
        )

    def collect(self) -> Iterator[Metric]:
        """The series as they are now."""
        now = self._snapshot()
        yield from machine(self._machine())
        yield from _counted(self._requests, self._totals)
        yield from _timed(self._waits, self._first_bytes)
        yield from _now(now)
        yield from _keys(now)
        yield from _caches(now)
        yield from _peers(now)


def _plus(total: int | None, more: int | None) -> int | None:
    return total if more is None else (total or 0) + more


def _counted(requests: Mapping[tuple[str, str, str, str], int], totals: Mapping[str, Totals]) -> Iterator[Metric]:
    what = "requests that are over. backend: where it ran last, a backend, peer NODE, or empty. status 499: client left"
    yield family(
        "counter", "viiwork_requests_total", OWN + what, ("model", "status", "backend", "origin"), requests.items()
    )
    ran = "of requests that ran on its backends, as far as the engines told"
    for kind, of in (
        ("prompt", f"tokens of prompts {ran}, reused ones included"),
        ("cached", f"tokens of prompts that engines had and did not read again, {ran}"),
        ("completion", f"tokens of answers {ran}"),
    ):
        values = [((model,), known) for model, one in totals.items() if (known := getattr(one, kind)) is not None]
        yield family("counter", f"viiwork_{kind}_tokens_total", OWN + of, ("model",), values)


def _timed(waits: Mapping[str, Buckets], first_bytes: Mapping[tuple[str, str], Buckets]) -> Iterator[Metric]:
    waited = "time that requests of its clients waited for a place; those that need not wait are 0"
    per_model = [((model,), buckets) for model, buckets in waits.items()]
    yield histogram("viiwork_queue_wait_seconds", OWN + waited, ("model",), per_model)
    first = "time from a place granted to the answer's first byte. place: here, or peer with the way there and back"
    yield histogram("viiwork_ttft_seconds", OWN + first, ("model", "place"), first_bytes.items())


def _now(now: Snapshot) -> Iterator[Metric]:
    yield from (
        family("gauge", name, OWN + of, ("model",), [((one.model,), getattr(one, figure)) for one in now.models])
        for name, figure, of in (
            ("viiwork_queue_length", "queued", "requests that wait for a place"),
            ("viiwork_slots", "slots", "slots of healthy backends"),
            ("viiwork_slots_busy", "busy", "slots of healthy backends that are taken"),
        )
    )
    states = [
        ((model, backend, state), float(state == current))
        for model, backend, current in now.backends
        for state in now.states
    ]
    of = "1 for the state that a backend is in, 0 for the others"
    yield family("gauge", "viiwork_backend_state", OWN + of, ("model", "backend", "state"), states)
    of = "bytes of the bodies of all requests that wait or run; api.max_inflight_bytes bounds them"
    yield family("gauge", "viiwork_inflight_body_bytes", OWN + of, (), [((), now.body_bytes)])


def _keys(now: Snapshot) -> Iterator[Metric]:
    of = "requests that its clients sent with an API key, by its name"
    asked = [((key,), count) for key, count in now.key_requests.items()]
    yield family("counter", "viiwork_key_requests_total", OWN + of, ("key",), asked)
    of = (
        "tokens of requests with an API key that ran on its backends, of any node's clients. kind: prompt or completion"
    )
    yield family("counter", "viiwork_key_tokens_total", OWN + of, ("key", "kind"), now.key_tokens.items())


def _caches(now: Snapshot) -> Iterator[Metric]:
    of = (
        "caches of sessions that move. result: saved; sent, failed or dropped before it started; received or refused; "
        "imported, useless if the turn then reused less than was promised, import_failed"
    )
    yield family("counter", "viiwork_replicas_total", OWN + of, ("model", "result"), now.replicas.items())
    for way, of in (
        ("sent", "bytes of caches handed to the network, those of failed transfers too"),
        ("sent_file", "bytes of caches that were sent whole or as deltas, as they lie on the disk"),
        ("received", "bytes of caches that came whole, as they lie on the disk"),
    ):
        values = [((model,), size) for (model, one), size in now.replica_bytes.items() if one == way]
        yield family("counter", f"viiwork_replica_{way}_bytes_total", OWN + of, ("model",), values)
    of = "seconds that moving caches took. step: save and import, which hold up the engine, or send"
    yield family("counter", "viiwork_replica_seconds_total", OWN + of, ("model", "step"), now.replica_seconds.items())
    of = (
        "turns of sessions after their first. switch: what changed since the turn before, none, backend or host. "
        "reuse: warm if 90 % of the prompt was reused, partly 30 %, cold; unknown"
    )
    yield family("counter", "viiwork_session_turns_total", OWN + of, ("model", "switch", "reuse"), now.turns.items())
    of = "turns after an import. warmth: warm if 90 % of the prompt was reused, partly 30 %, cold; unknown"
    yield family("counter", "viiwork_imports_total", OWN + of, ("model", "warmth"), now.imports.items())


def _peers(now: Snapshot) -> Iterator[Metric]:
    for name, figure, of in (
        ("viiwork_peer_slots", "slots", "slots of healthy backends, by the last report"),
        ("viiwork_peer_slots_busy", "busy", "slots that are taken, by the last report"),
        ("viiwork_peer_queue_length", "queued", "requests that wait there, by the last report"),
    ):
        values = [((peer.node, one.model), getattr(one, figure)) for peer in now.peers for one in peer.models]
        yield family("gauge", name, PEERS + of, ("node", "model"), values)
    ages = [((peer.node,), peer.age_s) for peer in now.peers]
    yield family("gauge", "viiwork_peer_report_age_seconds", PEERS + "age of the last report", ("node",), ages)

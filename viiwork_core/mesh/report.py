"""What a node answers to GET /v1/capacity: its models and the room they have.

    {"node", "node_id", "ver",
     "models": [{"name", "engine", "slots", "busy", "queued", "ctx"?, "backends", "healthy_backends",
                 "dead_backends"?, "first_byte_s"?, "import_ms_per_1k"?,
                 "kv"?: {"group", "fingerprint"}, "score"?: {"overhead_ms", "ms_per_1k"},
                 "heads"?: [{"link", "session", "tokens", "turn", "kind"?, "call"?, "text"?, "backend"?}]}],
     "aliases"?: DIGEST, "forgotten"?: DIGEST, "draining"?: true}

A figure that is unknown is absent. An unknown field is ignored, so that a newer member can add some.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from viiwork_core.errors import BackendFailed
from viiwork_core.mesh.member import Member
from viiwork_core.security.allowance import MAX_TOKENS

MAX_BYTES: Final = 1 << 20
LONGEST_SILENCE: Final = 86_400.0
"""Seconds; a longer one is not told, and not believed."""

MAX_HEADS: Final = 512
"""Conversations of one model in one report: some 160 bytes each."""

MAX_SPENDERS: Final = 1024
"""API keys of one report."""

# Names reach logs, pages and headers: no control characters. \Z, since $ lets a last line break through.
_Name = Annotated[str, Meta(min_length=1, max_length=256, pattern=r"^[^\x00-\x1f\x7f]+\Z")]
_Word = Annotated[str, Meta(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9._+-]+\Z")]
_Hash = Annotated[str, Meta(pattern=r"^[0-9a-f]{16}\Z")]
_Milliseconds = Annotated[float, Meta(ge=0, le=1e9)]
_Count = Annotated[int, Meta(ge=0, le=1_000_000)]
_Tokens = Annotated[int, Meta(ge=0, le=MAX_TOKENS)]


class KvReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """Whose caches fit this model's backends."""

    group: _Name
    fingerprint: _Word


class ScoreReport(msgspec.Struct, frozen=True):
    """How soon the model gives the first token there: see contracts.policy.Score."""

    overhead_ms: _Milliseconds
    ms_per_1k: Annotated[float, Meta(gt=0, le=1e9)]


class HeadReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """A conversation that the host holds, as keyed hashes: see routing.heads.Head."""

    link: _Hash
    session: Annotated[str, Meta(pattern=r"^[0-9a-f]{32}\Z")]
    tokens: Annotated[int, Meta(ge=0, le=1 << 40)]
    turn: Annotated[int, Meta(ge=0, le=1 << 40)]
    kind: Literal["live", "parked", "replica"] = "live"
    call: _Hash | None = None
    text: _Hash | None = None
    backend: _Name | None = None


class ModelReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """One model on the reporting host, all its backends together."""

    name: _Name
    engine: _Word
    slots: _Count
    """Of the healthy backends."""

    busy: _Count
    """Slots reserved; never more than `slots`."""

    queued: _Count
    """Requests waiting at this node."""

    backends: _Count
    healthy_backends: _Count
    ctx: Annotated[int, Meta(ge=1, le=1 << 40)] | None = None
    """Tokens that every healthy backend can take; None: unknown."""

    kv: KvReport | None = None
    dead_backends: _Count = 0
    """Of `backends`, those that are given up."""

    first_byte_s: Annotated[float, Meta(gt=0, le=LONGEST_SILENCE)] | None = None
    """Seconds that a streamed request may stay silent there, as configured; None: as long as is predicted."""

    score: ScoreReport | None = None
    """None: not measured."""

    active: _Count = 0
    """Conversations that were served there of late, and may go on at any time."""

    service_s: Annotated[float, Meta(gt=0, le=1e6)] | None = None
    """Seconds that a request holds a slot, the median of late; None: not measured."""

    import_ms_per_1k: Annotated[float, Meta(gt=0, le=1e9)] | None = None
    """Milliseconds that importing 1,000 tokens of a replica takes there, the median of late; None: not measured."""

    heads: Annotated[tuple[HeadReport, ...], Meta(max_length=MAX_HEADS)] = ()
    """The conversations that its engines hold, and the replicas that lie there."""

    def __post_init__(self) -> None:
        if self.busy > self.slots:
            raise ValueError("busy is over slots")
        if self.healthy_backends > self.backends:
            raise ValueError("healthy_backends is over backends")
        if self.healthy_backends + self.dead_backends > self.backends:
            raise ValueError("healthy_backends and dead_backends are over backends")


class SpentReport(msgspec.Struct, frozen=True):
    """Tokens that API keys have used on the reporting host."""

    day: Annotated[int, Meta(ge=0, le=1_000_000)]
    """Since the beginning of 1970, UTC."""

    tokens: Annotated[
        dict[Annotated[str, Meta(max_length=64, pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]*\Z")], _Tokens],
        Meta(max_length=MAX_SPENDERS),
    ]
    """By the key's name."""


class CapacityReport(msgspec.Struct, frozen=True):
    """The answer. Raises ValueError for figures that contradict each other, when made and when read."""

    node: _Name
    node_id: _Word
    ver: _Word
    models: Annotated[tuple[ModelReport, ...], Meta(max_length=1024)] = ()
    aliases: _Word | msgspec.UnsetType = msgspec.UNSET
    """Digest of the node's table of aliases: the hint that there may be something to fetch."""

    forgotten: _Word | msgspec.UnsetType = msgspec.UNSET
    """The same of the sessions that are forgotten."""

    draining: bool | msgspec.UnsetType = msgspec.UNSET
    """Whether the node takes no new work. Its models have no room then, so that a member that does not know the field
    sends nothing either: as many slots as are busy, and no healthy backend."""

    keys: _Word | msgspec.UnsetType = msgspec.UNSET
    """Digest of the node's table of API keys, a hint as that of the aliases."""

    spent: SpentReport | msgspec.UnsetType = msgspec.UNSET

    def __post_init__(self) -> None:
        if len({model.name for model in self.models}) != len(self.models):
            raise ValueError("a model is there twice")


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(CapacityReport)


def encode_report(report: CapacityReport) -> bytes:
    """The JSON text of a report."""
    return _encoder.encode(report)


def decode_report(raw: bytes, member: Member) -> CapacityReport:
    """Read what `member` answered. Raises BackendFailed with the reason, also when it speaks for another node."""
    if len(raw) > MAX_BYTES:
        raise BackendFailed(f"{member.node}: its capacity report is over {MAX_BYTES} bytes")
    try:
        report = _decoder.decode(raw)
    # RecursionError: what is nested too deeply for the decoder.
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BackendFailed(f"{member.node}: its capacity report is malformed: {error}") from error
    if (report.node, report.node_id) != (member.node, member.node_id):
        raise BackendFailed(f"{member.node}: another node, or another run of it, answers at its address")
    return report

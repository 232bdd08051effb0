"""What a node answers to GET /v1/capacity: its models and the room they have.

    {"node", "node_id", "ver",
     "models": [{"name", "engine", "slots", "busy", "queued", "ctx"?, "backends", "healthy_backends",
                 "kv"?: {"group", "fingerprint"}}]}

A figure that is unknown is absent. An unknown field is ignored, so that a newer member can add some.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from viiwork_core.errors import BackendFailed
from viiwork_core.mesh.member import Member

MAX_BYTES: Final = 1 << 20

# Names reach logs, pages and headers: no control characters. \Z, since $ lets a last line break through.
_Name = Annotated[str, Meta(min_length=1, max_length=256, pattern=r"^[^\x00-\x1f\x7f]+\Z")]
_Word = Annotated[str, Meta(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9._+-]+\Z")]
_Count = Annotated[int, Meta(ge=0, le=1_000_000)]


class KvReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """Whose caches fit this model's backends."""

    group: _Name
    fingerprint: _Word


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

    def __post_init__(self) -> None:
        if self.busy > self.slots:
            raise ValueError("busy is over slots")
        if self.healthy_backends > self.backends:
            raise ValueError("healthy_backends is over backends")


class CapacityReport(msgspec.Struct, frozen=True):
    """The answer. Raises ValueError for figures that contradict each other, when made and when read."""

    node: _Name
    node_id: _Word
    ver: _Word
    models: Annotated[tuple[ModelReport, ...], Meta(max_length=1024)] = ()

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

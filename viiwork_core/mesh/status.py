"""Status: what another member tells people about itself, in GET /v1/status, as far as it is shown here.

Figures that make no sense refuse the whole. Words are cut and put on one line: they are shown, and nothing else.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from viiwork_core.errors import BackendFailed
from viiwork_core.mesh.member import Member
from viiwork_core.observe.events import plain

LONGEST: Final = 300
MOST_LINKS: Final = 256
"""Members that a node tells of having sent caches to."""

_Count = Annotated[int, Meta(ge=0, le=1 << 53)]
_Figure = Annotated[float, Meta(ge=0, le=1e12)]


class _Words(msgspec.Struct, omit_defaults=True):
    """Cuts all texts of a part."""

    def __post_init__(self) -> None:
        for field in self.__struct_fields__:
            if isinstance(value := getattr(self, field), str):
                setattr(self, field, plain(value)[:LONGEST])


class GpuStatus(_Words, omit_defaults=True):
    """One card."""

    index: _Count
    uuid: str | None = None
    name: str | None = None
    vendor: str | None = None
    target: str | None = None
    util: _Figure | None = None
    vram_used_mb: _Count | None = None
    vram_total_mb: _Count | None = None
    power_w: _Figure | None = None


class BackendStatus(_Words, omit_defaults=True):
    """One backend."""

    id: str
    status: str
    slots: _Count
    busy: _Count
    gpus: Annotated[list[_Count], Meta(max_length=64)] | None = None
    phase: str | None = None
    progress: Annotated[float, Meta(ge=0, le=1)] | None = None
    reason: str | None = None
    pid: _Count | None = None
    rss_mb: _Count | None = None
    respawns: _Count | None = None
    uptime_s: _Count | None = None


class ModelStatus(_Words, omit_defaults=True):
    """One model."""

    name: str
    engine: str
    slots: _Count
    busy: _Count
    queued: _Count
    engine_version: str | None = None
    ctx: _Count | None = None
    requests_total: _Count | None = None
    tokens_total: _Count | None = None
    prompt_tokens_total: _Count | None = None
    cached_tokens_total: _Count | None = None
    parked: bool | None = None
    backends: Annotated[list[BackendStatus], Meta(max_length=256)] = []


class ImportsStatus(_Words, omit_defaults=True):
    """How much of their prompts the turns of one model reused that followed an import."""

    model: str
    warm: _Count = 0
    partly: _Count = 0
    cold: _Count = 0
    unknown: _Count = 0


class LinkStatus(_Words, omit_defaults=True):
    """Caches that went from one node to another."""

    node: str
    sent: _Count = 0
    failed: _Count = 0
    sent_bytes: _Count = 0
    under_way: _Count = 0


class KvShareStatus(_Words, omit_defaults=True):
    """Caches that were sent, and imported."""

    sent: _Count | None = None
    failed: _Count | None = None
    dropped: _Count | None = None
    sent_bytes: _Count | None = None
    links: Annotated[list[LinkStatus], Meta(max_length=MOST_LINKS)] = []
    imports: Annotated[list[ImportsStatus], Meta(max_length=1024)] = []


class MemberStatus(_Words, omit_defaults=True):
    """One node."""

    node: str
    node_id: str
    ver: str
    uptime_s: _Count
    host_mem_total_mb: _Count | None = None
    host_mem_used_mb: _Count | None = None
    gpus: Annotated[list[GpuStatus], Meta(max_length=64)] | None = None
    models: Annotated[list[ModelStatus], Meta(max_length=1024)] = []
    kv_share: KvShareStatus | None = None


_decoder = msgspec.json.Decoder(MemberStatus)


def read_status(raw: bytes, member: Member) -> MemberStatus:
    """Read what `member` answered. Raises BackendFailed with the reason, also when it speaks for another node."""
    try:
        status = _decoder.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BackendFailed(f"{member.node}: its status is malformed: {error}") from error
    if (status.node, status.node_id) != (member.node, member.node_id):
        raise BackendFailed(f"{member.node}: another node, or another run of it, answers at its address")
    return status


def own_status(status: dict[str, Any]) -> MemberStatus | None:
    """This node's own status in the shape that members read; None when other nodes would refuse it, too."""
    try:
        return msgspec.convert(status, MemberStatus)
    except msgspec.ValidationError:
        return None

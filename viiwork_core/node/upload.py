"""The upload of a session's caches to a member: what it asks for when it refuses, and how a transfer is counted."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

import msgspec
import structlog

from viiwork_core.errors import BackendFailed, BaseMissing, CacheRefused, ResumeFrom
from viiwork_core.kvshare.sending import Delivery
from viiwork_core.kvshare.streams import SealedFile
from viiwork_core.kvshare.tally import Tally
from viiwork_core.mesh.links import Links
from viiwork_core.mesh.member import Member

PATH = "/v1/kv/replicas"

OFFSET = "X-Viiwork-Offset"
"""Header of a refusal: the byte of the file that a broken transfer is to go on from."""

_log = structlog.get_logger("viiwork.kv")


async def upload(links: Links, member: Member, stream: AsyncIterator[bytes]) -> None:
    """Send a sealed stream, over the member's direct link where it has one and that answers.

    Raises BackendFailed, or CacheRefused with the member's reason.
    """
    api = f"[{member.host}]:{member.api_port}" if ":" in member.host else f"{member.host}:{member.api_port}"
    addresses = [member.kv_address, api] if member.kv_address else [api]
    for place, address in enumerate(addresses):
        try:
            await _put(links, address, member, stream)
        except BackendFailed:
            untouched = isinstance(stream, SealedFile) and not stream.sent
            if place + 1 == len(addresses) or not untouched:
                raise
        else:
            return


async def _put(links: Links, address: str, member: Member, stream: AsyncIterator[bytes]) -> None:
    headers = [("Content-Type", "application/octet-stream")]
    async with links.open_put(address, PATH, headers=headers, body=stream, to=member.node_id) as response:
        if response.status != 200:
            body = await response.content.read(4096)
            raise _refusal(f"{member.node} answered {response.status}", body, response.headers.get(OFFSET, ""))


def _refusal(who: str, body: bytes, offset: str) -> CacheRefused:
    """What a member's refusal asks for."""
    said = f"{who}: {body.decode('utf-8', 'replace')}"
    try:
        code = msgspec.json.decode(body, type=dict[str, dict[str, object]])["error"]["code"]
    except (msgspec.MsgspecError, UnicodeDecodeError, KeyError, RecursionError):
        code = None
    if code == BaseMissing.code:
        return BaseMissing(said)
    if code == ResumeFrom.code and re.fullmatch(r"[0-9]{1,16}", offset, re.ASCII):
        return ResumeFrom(said, offset=int(offset))
    return CacheRefused(said)


def told(delivery: Delivery[Member], tally: Tally) -> None:
    """Count a transfer, and write one log line about it."""
    label = delivery.save.label
    begun = delivery.bytes > 0 or delivery.seconds > 0
    counts = tally.of(label.model)
    counts.sent += delivery.error is None
    counts.failed += delivery.error is not None and begun
    counts.dropped += delivery.error is not None and not begun
    counts.sent_bytes += delivery.bytes
    counts.sent_file_bytes += delivery.save.bytes if delivery.error is None else 0
    counts.send_seconds += delivery.seconds
    fields = {
        "model": label.model,
        "session": label.session,
        "turn": label.turn,
        "to": delivery.save.target.node,
        "bytes": delivery.bytes,
        "of": delivery.save.bytes,
        "seconds": round(delivery.seconds, 3),
    }
    if delivery.error is None:
        _log.info("kv sent", reason="the session would go there next", **fields)
    else:
        _log.warning("kv not sent", reason=delivery.error, **fields)

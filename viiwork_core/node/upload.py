"""The upload of a session's caches to a member: what it asks for when it refuses, and how a transfer is counted."""

from __future__ import annotations

import re
import socket

import aiohttp
import msgspec
import structlog

from viiwork_core.errors import BackendFailed, BaseMissing, CacheRefused, ResumeFrom, UpgradeUnsupported
from viiwork_core.kvshare.sending import Delivery
from viiwork_core.kvshare.streams import SealedFile
from viiwork_core.kvshare.tally import Tally
from viiwork_core.kvshare.upgraded import ANSWER_MOST, OFFSET, PROTOCOL, Said, give
from viiwork_core.mesh.links import Links
from viiwork_core.mesh.member import Member

PATH = "/v1/kv/replicas"

_log = structlog.get_logger("viiwork.kv")


async def upload(links: Links, member: Member, stream: SealedFile) -> None:
    """Send a sealed stream, over the member's direct link where it has one and that answers.

    Raises BackendFailed, or CacheRefused with the member's reason.
    """
    api = f"[{member.host}]:{member.api_port}" if ":" in member.host else f"{member.host}:{member.api_port}"
    addresses = [member.kv_address, api] if member.kv_address else [api]
    for place, address in enumerate(addresses):
        try:
            await _send(links, address, member, stream)
        except BackendFailed:
            if place + 1 == len(addresses) or stream.sent:
                raise
        else:
            return


async def _send(links: Links, address: str, member: Member, stream: SealedFile) -> None:
    """Past HTTP; as a request's body where the member's server cannot do that."""
    async with links.open_upgrade(address, PATH, PROTOCOL, to=member.node_id) as answer:
        if isinstance(answer, socket.socket):
            said = await _given(answer, member, stream)
        else:
            said = await _read(answer)
    if _code(said.body) == UpgradeUnsupported.code:
        said = await _put(links, address, member, stream)
    if said.status != 200:
        raise _refusal(f"{member.node} answered {said.status}", said)


async def _given(connection: socket.socket, member: Member, stream: SealedFile) -> Said:
    try:
        return await give(connection, stream)
    except OSError as error:
        raise BackendFailed(f"{member.node}: the transfer broke off: {error}") from error


async def _put(links: Links, address: str, member: Member, stream: SealedFile) -> Said:
    headers = [("Content-Type", "application/octet-stream")]
    async with links.open_put(address, PATH, headers=headers, body=stream, to=member.node_id) as response:
        return await _read(response)


async def _read(response: aiohttp.ClientResponse) -> Said:
    return Said(response.status, response.headers.get(OFFSET, ""), await response.content.read(ANSWER_MOST))


def _code(body: bytes) -> object:
    """Of an error; None: it has none."""
    try:
        return msgspec.json.decode(body, type=dict[str, dict[str, object]])["error"]["code"]
    except (msgspec.MsgspecError, UnicodeDecodeError, KeyError, RecursionError):
        return None


def _refusal(who: str, answer: Said) -> CacheRefused:
    """What a member's refusal asks for."""
    said, code = f"{who}: {answer.body.decode('utf-8', 'replace')}", _code(answer.body)
    if code == BaseMissing.code:
        return BaseMissing(said)
    if code == ResumeFrom.code and re.fullmatch(r"[0-9]{1,16}", answer.offset, re.ASCII):
        return ResumeFrom(said, offset=int(answer.offset))
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

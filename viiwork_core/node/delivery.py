"""Sending replicas: which member takes one, and the upload to it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import structlog

from viiwork_core.clock import Clock
from viiwork_core.contracts.policy import Query
from viiwork_core.errors import BackendFailed, CacheRefused
from viiwork_core.kvshare.sending import Delivery, SealedFile
from viiwork_core.mesh.links import Links
from viiwork_core.mesh.member import Member
from viiwork_core.mesh.report import KvReport
from viiwork_core.routing.router import Router

PATH = "/v1/kv/replicas"

_log = structlog.get_logger("viiwork.kv")


def target(router: Router, clock: Clock, model: str, session: str, kv: KvReport) -> Member | None:
    """The member that the session would go to next, if its caches fit: the policy's ranking without this host."""
    query = Query(model=model, session=session, prompt_tokens=1)
    for view in router.spill_order(query, clock.monotonic()):
        report = next((one for one in view.report.models if one.name == model), None)
        if report is not None and report.kv == kv:
            return view.member
    return None


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
            text = (await response.content.read(4096)).decode("utf-8", "replace")
            raise CacheRefused(f"{member.node} answered {response.status}: {text}")


def told(delivery: Delivery[Member]) -> None:
    """One log line a transfer."""
    label = delivery.save.label
    fields = {
        "model": label.model,
        "session": label.session,
        "turn": label.turn,
        "to": delivery.save.target.node,
        "bytes": delivery.bytes,
        "seconds": round(delivery.seconds, 3),
    }
    if delivery.error is None:
        _log.info("kv sent", **fields)
    else:
        _log.warning("kv not sent", reason=delivery.error, **fields)

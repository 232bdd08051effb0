"""GET /v1/mesh/stream: what happens in the whole mesh, as named server-sent events.

    event: cluster    the members, as in GET /v1/cluster, without the figures that change by themselves
    event: aliases    as in GET /v1/aliases
    event: activity   one event of one node's activity log, with node_id, hostname and addr

The first two come at once, and again when they have changed; then the past, marked `replay`, and then what happens.

GET /v1/status/stream is the same of this node alone:

    event: status     as in GET /v1/status, without the figures that change by themselves
    event: sample     the newest of GET /v1/status/history, each ten seconds; null before there is one
    event: activity   as above
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from viiwork_core.mesh.followers import LIVE
from viiwork_core.proxy.request import Receive, Scope, Send
from viiwork_core.web.activity import follow, headed
from viiwork_core.web.viewers import Viewers

PATH: Final = "/v1/mesh/stream"
HERE: Final = "/v1/status/stream"


async def stream(viewers: Viewers, scope: Scope, receive: Receive, send: Send) -> None:
    """Ends with the node, or when the client leaves. A client that reads too slowly is cut off."""
    if await headed(scope, send):
        return
    viewer = viewers.join()
    try:
        hello = b": mesh\n\n" + _text(viewer.past) + LIVE + b"\n\n"
        await follow(viewer, hello, _text, receive, send)
    finally:
        viewers.leave(viewer)


def _text(frames: Iterable[bytes]) -> bytes:
    return b"".join(frames)

"""What an earlier run of this node left running, when both it and its sitter were killed."""

from __future__ import annotations

import anyio.to_thread
import structlog

from viiwork_core.engines import sitter

_log = structlog.get_logger("viiwork.engines")


async def end_leftovers(node_id: str) -> None:
    """End this user's processes that carry the marker of a run which is over. Takes 3 s at the very most.

    They could not be adopted: nobody reads their output any more, and what they were started with is not known.
    """
    pids = await anyio.to_thread.run_sync(sitter.marked, node_id)
    if not pids:
        return
    _log.warning("an earlier run left processes behind, they are ended", pids=pids)
    await anyio.to_thread.run_sync(sitter.end, set(), node_id)

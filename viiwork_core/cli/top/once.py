"""One look at the mesh, for scripts: what a node tells until it is up to date."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import aclosing
from typing import Any, Final

from viiwork_core.cli.operator import Operator
from viiwork_core.cli.top.lines import text_of
from viiwork_core.cli.top.picture import ALIASES, CLUSTER, Picture
from viiwork_core.cli.top.sections import head, sections
from viiwork_core.cli.top.stream import Live, told

SETTLED_S: Final = 1.0
"""Members are followed only while somebody looks: so long may they take to tell of what runs there."""

WITHIN_S: Final = 15.0


async def looked(node: Operator) -> Picture:
    """The picture as it is now. Raises ViiworkError."""
    picture = Picture()
    try:
        async with asyncio.timeout(WITHIN_S) as limit, aclosing(told(node)) as events:
            async for one in events:
                if not isinstance(one, Live):
                    picture.take(*one, now=time.monotonic(), wall=time.time())
                    continue
                if len(picture.members) < 2:
                    break
                limit.reschedule(min(limit.when() or 0.0, asyncio.get_running_loop().time() + SETTLED_S))
    except TimeoutError:
        pass  # what is known by then
    # The members' own figures are asked for first, which a stream does not wait for.
    cluster, aliases = await asyncio.to_thread(_asked, node)
    for name, data in ((CLUSTER, cluster), (ALIASES, aliases)):
        picture.take(name, data, now=time.monotonic(), wall=time.time())
    return picture


def _asked(node: Operator) -> tuple[Any, Any]:
    return node.ask("GET", "/v1/cluster"), node.ask("GET", "/v1/aliases")


def frame(picture: Picture, now: float, width: int) -> Iterator[str]:
    """The picture as plain text."""
    yield f"viiwork top: {head(picture)}"
    for section in sections(picture, now, width):
        yield ""
        yield section.title
        yield from map(text_of, section.lines)

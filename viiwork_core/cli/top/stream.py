"""The stream: GET /v1/mesh/stream of one node as events, and the same again when it broke."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, Final

import httpx
import msgspec

from viiwork_core.cli.operator import Operator
from viiwork_core.config.running import dialled
from viiwork_core.errors import ViiworkError

PATH: Final = "/v1/mesh/stream"
LIVE: Final = ": live"
"""The comment with which the stream says that it has told the past."""

SILENCE_S: Final = 45.0
"""The node breaks each silence of 15 s; a stream that is silent for longer has lost its other end."""

CONNECT_S: Final = 5.0
FIRST_WAIT_S: Final = 0.5
LONGEST_WAIT_S: Final = 5.0
LONGEST_LINE: Final = 8 << 20
"""Characters. A mesh of 1,000 models tells of itself in about a tenth."""

_DECODER: Final = msgspec.json.Decoder()


class Live:
    """The past has been told."""


Told = tuple[str, Any] | Live


async def told(node: Operator) -> AsyncGenerator[Told, None]:
    """Name and data of each event, and Live between the past and the present. Raises ViiworkError when it ends."""
    api, timeout = node.api, httpx.Timeout(SILENCE_S, connect=CONNECT_S)
    try:
        async with (
            httpx.AsyncClient(timeout=timeout, trust_env=False) as client,
            client.stream("GET", dialled(api) + PATH, headers=node.shown(PATH)) as response,
        ):
            if response.status_code != 200:
                remedy = "see with `viiwork status` what it says"
                raise ViiworkError(f"{api} answers {response.status_code} to {PATH}", remedy=remedy)
            async with aclosing(_events(response)) as events:
                async for one in events:
                    yield one
    except (httpx.HTTPError, httpx.StreamError) as error:
        raise ViiworkError(f"the node at {api} does not answer: {error}", remedy="does it run?") from error
    raise ViiworkError(f"the node at {api} has ended the stream", remedy="does it run?")


async def _events(response: httpx.Response) -> AsyncGenerator[Told, None]:
    rest, name = "", ""
    async for text in response.aiter_text():
        *lines, rest = (rest + text).split("\n")
        if len(rest) > LONGEST_LINE:
            raise ViiworkError(f"the node tells of more than {LONGEST_LINE} characters at once")
        for line in lines:
            if line == LIVE:
                yield Live()
            elif line.startswith("event: "):
                name = line.removeprefix("event: ")
            elif line.startswith("data: "):
                yield name, _decoded(line.removeprefix("data: "))


def _decoded(data: str) -> Any:
    try:
        return _DECODER.decode(data)
    except (msgspec.DecodeError, RecursionError):
        return None


async def followed(
    find: Callable[[], Operator],
    *,
    begin: Callable[[], None],
    take: Callable[[str, Any], None],
    lost: Callable[[str], None],
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """Follow a node until cancelled. `begin`: the stream begins, `lost`: it broke, and why. It is tried for ever.

    `find` looks the node up, which may listen elsewhere once it was started again. Called in a thread.
    """
    wait = FIRST_WAIT_S
    while True:
        try:
            node = await asyncio.to_thread(find)
            begun = False
            async with aclosing(told(node)) as events:
                async for one in events:
                    if not begun:
                        begin()
                        begun, wait = True, FIRST_WAIT_S
                    if not isinstance(one, Live):
                        take(*one)
        except ViiworkError as error:
            lost(error.message)
        await sleep(wait)
        wait = min(2 * wait, LONGEST_WAIT_S)

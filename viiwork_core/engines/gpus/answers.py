"""Answers of tools and drivers that may be missing, fail or hang. All of that is one thing here: no answer."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

import anyio

from viiwork_core.contracts.context import RunCommand
from viiwork_core.errors import EngineRefused

T = TypeVar("T")

DEADLINE = 10.0

_OBJECT = re.compile(r"^\{", re.MULTILINE)


async def said(run: RunCommand, *argv: str) -> str | None:
    """What a command printed, whatever its exit status: tools fail for one card and still tell of the others."""
    try:
        return (await run(argv)).text
    except EngineRefused:
        return None


def printed_object(text: str) -> dict[str, Any]:
    """The JSON object in an output that may hold warnings before and after it; empty where there is none."""
    start = _OBJECT.search(text)
    try:
        found = json.JSONDecoder().raw_decode(text, start.start())[0] if start else {}
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


class Errand:
    """Blocking reads, one at a time, each on a thread of its own.

    A driver can hold a thread for ever. A pool's thread would then keep the node from exiting; a daemon thread does
    not, and no second one is sent after the first.
    """

    def __init__(self, deadline: float = DEADLINE) -> None:
        self._deadline = deadline
        self._turn = asyncio.Lock()
        self._away = False

    async def run(self, work: Callable[[], T]) -> T | None:
        """What `work` returns; None when it is late, or when an earlier one has not come back yet."""
        async with self._turn:
            if self._away:
                return None
            return await self._sent(work)

    async def _sent(self, work: Callable[[], T]) -> T | None:
        loop, done, found = asyncio.get_running_loop(), asyncio.Event(), list[T]()

        def go() -> None:
            try:
                found.append(work())
            finally:
                self._away = False
                with suppress(RuntimeError):  # the loop was closed meanwhile
                    loop.call_soon_threadsafe(done.set)

        self._away = True
        threading.Thread(target=go, name="viiwork-gpus", daemon=True).start()
        with anyio.move_on_after(self._deadline):
            await done.wait()
        return found[0] if found else None

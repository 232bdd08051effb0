"""A node that has no room: its one slot is taken, so that whoever comes is refused until it is let go."""

from __future__ import annotations

import asyncio
import json
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from callers import SCRIPTED
from http_node import Node, ask, chat, script, until


class Slot:
    """The node's one slot, taken until `let_go`."""

    def __init__(self, node: Node, gate: str) -> None:
        self._node, self._gate = node, gate
        self._before = len(self._refusals())

    def refused(self) -> None:
        """Wait until a client was refused since."""
        until(lambda: len(self._refusals()) > self._before, "a client is refused for want of room")

    def let_go(self) -> None:
        """Free it, if it is not free yet."""
        self._node.engine(SCRIPTED).open(self._gate)

    def _refusals(self) -> list[dict[str, Any]]:
        return self._node.events("request", model=SCRIPTED, status=429)


@contextmanager
def held(node: Node) -> Iterator[Slot]:
    """Take the slot. Whoever comes now is answered 429 with `Retry-After: 2`."""
    gate = uuid.uuid4().hex  # an open one stays open
    body = chat(SCRIPTED, script(("gate", gate), ("json", 200, json.dumps({"choices": []}))))
    holder = threading.Thread(target=lambda: asyncio.run(ask(node, body)))
    holder.start()
    try:
        until(lambda: node.model(SCRIPTED)["busy"] == 1, "the slot is taken")
        slot = Slot(node, gate)
        yield slot
    finally:
        slot.let_go()
        holder.join()

"""What the slot book knows before the fleet has said a word."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from viiwork_core.clock import SystemClock
from viiwork_core.config.schema import HealthConfig
from viiwork_core.contracts.engine import Phase
from viiwork_core.engines.slots import SlotBook
from viiwork_core.engines.states import BackendState
from viiwork_core.node.bridge import Bridge

sys.path.insert(0, str(Path(__file__).parents[2] / "process"))

from plain import PlainEngine, plan  # found by the line above


def test_configured_backends_are_known_from_the_start() -> None:
    async def scene() -> SlotBook:
        book, engine, clock = SlotBook(SystemClock()), PlainEngine(), SystemClock()
        plans = [plan(engine, index=index, backends=2) for index in range(2)]
        Bridge(book, lambda: None).fleet(plans, HealthConfig(), node_id="test", clock=clock)
        return book

    book = asyncio.run(scene())
    assert [view.id for view in book.views()] == ["m/0", "m/1"]
    assert {(view.state, view.phase, view.incarnation) for view in book.views()} == {
        (BackendState.STARTING, Phase.QUEUED, 0)
    }
    room = book.room("m")
    assert room is not None
    assert (room.slots, room.backends, room.healthy_backends) == (0, 2, 0)

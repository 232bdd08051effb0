"""How an application begins that cannot."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from viiwork_core.web import app as module
from viiwork_core.web import create_app


def test_a_node_that_opened_is_closed_before_the_server_is_told_that_its_pages_cannot_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Hypercorn looks at that moment whether the lifespan has ended, and otherwise serves on for ever."""
    happened: list[str] = []

    @asynccontextmanager
    async def open_node() -> AsyncIterator[Any]:
        yield None
        happened.append("closed")

    def broken(surface: Any) -> Any:
        raise RuntimeError("no pages")

    async def receive() -> Any:
        return {"type": "lifespan.startup"}

    async def send(message: Any) -> None:
        happened.append(message["type"])

    monkeypatch.setattr(module, "read_endpoints", broken)
    app = create_app(open_node)
    with pytest.raises(RuntimeError, match="no pages"):
        asyncio.run(app({"type": "lifespan"}, receive, send))
    assert happened == ["closed", "lifespan.startup.failed"]
    assert str(app.failure) == "no pages"

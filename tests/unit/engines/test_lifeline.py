"""The sitter's keeper: a sitter that ends is replaced, also where that does not succeed at once."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Mapping, Sequence

import pytest
from structlog.testing import capture_logs

from viiwork_core.engines import lifeline
from viiwork_core.engines.lifeline import Sitter
from viiwork_core.engines.process import start_process
from viiwork_core.errors import EngineRefused


def test_a_sitter_that_cannot_be_replaced_at_once_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    starts = list[str]()

    async def failing_once(argv: Sequence[str], env: Mapping[str, str], *, stdin: int) -> asyncio.subprocess.Process:
        starts.append("fails" if len(starts) == 1 else "starts")
        if starts[-1] == "fails":
            raise EngineRefused("cannot start python: Resource temporarily unavailable")
        return await start_process(argv, env, stdin=stdin)

    monkeypatch.setattr(lifeline, "start_process", failing_once)
    monkeypatch.setattr(lifeline, "RESTART_AFTER", 0.0)

    async def scene() -> None:
        async with asyncio.timeout(20), Sitter(f"again-{os.getpid()}") as sitting:
            first = sitting.pid
            assert first is not None
            os.kill(first, signal.SIGKILL)
            while sitting.pid == first:  # noqa: ASYNC110  # nobody is told of a new one
                await asyncio.sleep(0)

    with capture_logs() as logs:
        asyncio.run(scene())
    assert starts == ["starts", "fails", "starts"]
    assert [line["log_level"] for line in logs] == ["warning", "error"]

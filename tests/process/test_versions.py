"""Which version an engine is: asked once it is ready, forgotten with its process, and never a reason to go without."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from plain import PlainEngine, Watch, plan, running

from viiwork_core import Address, EngineRefused, Load, Spec, Versioned
from viiwork_core.engines.states import BackendState, BackendView


class Told(PlainEngine, Versioned):
    """Says what it is given, or raises it."""

    def __init__(self, answer: Any) -> None:
        super().__init__()
        self.answer = answer
        self.asked = asyncio.Event()
        self.loaded = asyncio.Event()

    async def version(self, address: Address) -> str | None:
        assert (await self._get(f"{address.url}/health"))["ready"]
        self.asked.set()
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer  # type: ignore[no-any-return]  # whatever a plugin may say

    async def load(self, spec: Spec, address: Address) -> Load:
        if self.asked.is_set():
            self.loaded.set()
        return await super().load(spec, address)


def scene(engine: Told, watch: Watch) -> BackendView:
    """The backend's last view, some time after its version was asked for."""

    async def play() -> BackendView:
        async with running(plan(engine), publish=watch.publish):
            await watch.until_state("m/0", BackendState.HEALTHY)
            await asyncio.wait_for(engine.loaded.wait(), 30)
            return watch.of("m/0")[-1]

    return asyncio.run(play())


def test_it_is_shown_as_long_as_the_process_lives() -> None:
    watch = Watch()
    assert scene(Told("b6123+rocm_7-2.1"), watch).version == "b6123+rocm_7-2.1"
    last = watch.of("m/0")[-1]
    assert (last.state, last.version) == (BackendState.STOPPED, None)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (None, None),
        ("two words", "'two words' is no version"),
        ("v" * 41, "is no version"),
        ("", "'' is no version"),
        (7, "returned int"),
        (ValueError("no idea"), "no idea"),
        (EngineRefused("it does not tell"), "it does not tell"),
    ],
)
def test_without_one_the_backend_serves_all_the_same(
    answer: Any, reason: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    view = scene(Told(answer), Watch())
    assert (view.state, view.version) == (BackendState.HEALTHY, None)
    log = capsys.readouterr().out
    assert ("does not tell its version" in log) is (reason is not None)
    assert reason is None or reason in log

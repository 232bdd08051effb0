"""What a fleet does with what is known of the cards, and with the advice of its engines."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from plain import PlainEngine, Watch, plan, running
from structlog.testing import capture_logs

from viiwork_core import Accelerator, Advises, ConfigError, Spec, Vendor
from viiwork_core.engines.gpus.gpu import Gpu, Users
from viiwork_core.engines.states import BackendState, BackendView

HEALTHY, DEAD = BackendState.HEALTHY, BackendState.DEAD
CARDS = tuple(Gpu(index, Vendor.AMD, name="vega20", target="gfx906", memory_total=16368) for index in (0, 1))


class FakeCards:
    """Two cards, and a driver that says on which of them the process of a backend is."""

    def __init__(self, watch: Watch, on: Callable[[BackendView], frozenset[int] | None]) -> None:
        self.is_settled = False
        self.asked = 0
        self.asked_twice = asyncio.Event()
        self._watch = watch
        self._on = on

    async def settled(self) -> None:
        await asyncio.sleep(0)
        self.is_settled = True

    def gpus(self) -> tuple[Gpu, ...] | None:
        return CARDS if self.is_settled else None

    async def users(self) -> Users | None:
        self.asked += 1
        if self.asked == 2:
            self.asked_twice.set()
        view = self._watch.views[-1]
        cards = self._on(view)
        return None if cards is None or view.pid is None else {view.pid: cards}


class Noted(PlainEngine):
    """Keeps the specs of its launches."""

    def __init__(self, *args: str) -> None:
        super().__init__(*args)
        self.specs: list[Spec] = []

    def launch(self, spec: Spec) -> Any:
        self.specs.append(spec)
        return super().launch(spec)


def test_a_launch_is_told_what_is_known_of_its_cards() -> None:
    watch, engine = Watch(), Noted()
    cards = FakeCards(watch, lambda _: None)

    async def scene() -> None:
        on = {"gpus": (1,), "vendor": Vendor.AMD}
        async with running(plan(engine, **on), plan(engine, index=1, gpus=(7,)), publish=watch.publish, cards=cards):
            await watch.until_state("m/0", HEALTHY)
            await watch.until_state("m/1", HEALTHY)

    asyncio.run(scene())
    known = {spec.index: spec.cards for spec in engine.specs}
    assert known == {0: (Accelerator(1, "vega20", "gfx906", 16368),), 1: (Accelerator(7),)}
    assert {spec.node_backends for spec in engine.specs} == {2}


def test_a_backend_on_a_neighbours_card_is_started_again() -> None:
    watch, engine = Watch(), PlainEngine()
    cards = FakeCards(watch, lambda view: frozenset({0} if view.incarnation > 1 else {0, 1}))

    async def scene() -> BackendView:
        placed = plan(engine, gpus=(0,), vendor=Vendor.AMD)
        async with running(placed, publish=watch.publish, cards=cards):
            await watch.until("m/0", lambda view: view.incarnation == 2 and view.load is not None)
            await asyncio.wait_for(cards.asked_twice.wait(), 20)
            return watch.of("m/0")[-1]

    view = asyncio.run(scene())
    assert (view.state, view.incarnation, view.respawns) == (HEALTHY, 2, 1)
    assert cards.asked == 2
    assert any("computes on card 0, 1, and its own are 0" in (one.reason or "") for one in watch.views)


def test_a_backend_that_is_never_on_its_own_card_ends_dead_with_the_reason() -> None:
    watch = Watch()
    cards = FakeCards(watch, lambda _: frozenset({1}))

    async def scene() -> BackendView:
        placed = plan(PlainEngine(), gpus=(0,), vendor=Vendor.NVIDIA)
        async with running(placed, publish=watch.publish, cards=cards):
            return await watch.until_state("m/0", DEAD)

    reason = asyncio.run(scene()).reason or ""
    assert reason.startswith("it computes on card 1, and its own are 0; look for what chooses cards")


@pytest.mark.parametrize(
    ("fields", "on", "warning"),
    [
        ({"gpus": (0, 1)}, {1}, "a backend leaves some of its cards idle"),
        ({"gpus": (0,), "env": {"ROCR_VISIBLE_DEVICES": "1"}}, {1}, "a backend is on other cards"),
    ],
)
def test_what_was_asked_for_is_only_told(fields: dict[str, Any], on: set[int], warning: str) -> None:
    watch = Watch()
    cards = FakeCards(watch, lambda _: frozenset(on))

    async def scene() -> BackendView:
        async with running(plan(PlainEngine(), vendor=Vendor.AMD, **fields), publish=watch.publish, cards=cards):
            await watch.until("m/0", lambda view: view.load is not None and cards.asked > 0)
            return watch.of("m/0")[-1]

    with capture_logs() as logs:
        view = asyncio.run(scene())
    assert (view.state, view.incarnation) == (HEALTHY, 1)
    (told,) = [line for line in logs if line["event"] == warning]
    assert (told["backend"], told["found_on"]) == ("m/0", "1")


@pytest.mark.parametrize("vendor", [Vendor.APPLE, Vendor.NONE])
def test_a_vendor_whose_driver_does_not_tell_is_not_asked(vendor: Vendor) -> None:
    watch = Watch()
    cards = FakeCards(watch, lambda _: frozenset({1}))

    async def scene() -> None:
        async with running(plan(PlainEngine(), gpus=(0,), vendor=vendor), publish=watch.publish, cards=cards):
            await watch.until("m/0", lambda view: view.load is not None)

    asyncio.run(scene())
    assert cards.asked == 0


class Adviser(PlainEngine, Advises):
    """Says `words`, or fails with them."""

    def __init__(self, words: Sequence[Any] | Exception, *args: str) -> None:
        super().__init__(*args)
        self._words = words

    async def advice(self, spec: Spec) -> Sequence[str]:
        if isinstance(self._words, Exception):
            raise self._words
        return self._words


def logged(engine: PlainEngine, state: BackendState) -> list[Any]:
    """The warnings of two backends until they are in that state."""
    watch = Watch()

    async def scene() -> None:
        async with running(plan(engine), plan(engine, index=1), publish=watch.publish):
            await watch.until_state("m/0", state)
            await watch.until_state("m/1", state)

    with capture_logs() as logs:
        asyncio.run(scene())
    return [line for line in logs if line["log_level"] == "warning"]


def test_advice_is_logged_once_for_all_starts_of_a_model() -> None:
    engine = Adviser(["too\nlarge; take less", "slow"], "--exit-after", "0")
    told = [line["event"] for line in logged(engine, DEAD)]
    assert [event for event in told if event.startswith("advice")] == ["advice: too large; take less", "advice: slow"]


@pytest.mark.parametrize("words", [[7], RuntimeError("no"), ConfigError("models[m].x: no")])
def test_advice_that_fails_costs_only_the_advice(words: Any) -> None:
    told = logged(Adviser(words), HEALTHY)
    assert {line["event"] for line in told} >= {"an engine has no advice"}

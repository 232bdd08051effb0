"""The GPUs of a node: in its status, and in what its backends are pinned to."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from viiwork_core import Vendor
from viiwork_core.builtin.policies import LeastBusy
from viiwork_core.config.schema import ModelConfig
from viiwork_core.contracts.options import NoOptions
from viiwork_core.engines.gpus.gpu import Gpu
from viiwork_core.engines.slots import SlotBook
from viiwork_core.node.plans import plan
from viiwork_core.node.status import status_of
from viiwork_core.node.views import Views
from viiwork_core.registry.options import ResolvedModel
from viiwork_core.routing.backends import LocalBackends
from viiwork_core.routing.router import Router
from viiwork_core.testing.engine_kit import kit_context
from viiwork_core.testing.fake_clock import FakeClock
from viiwork_core.testing.fake_plugin import FakeEngine, FakeOptions


def status(cards: tuple[Gpu, ...] | None) -> dict[str, Any]:
    clock, policy, rng = FakeClock(), LeastBusy(NoOptions()), random.Random(1)
    book = SlotBook(clock)
    local = LocalBackends(book, policy, rng)
    router = Router(node="n", local=local, policy=policy, rng=rng, queue_max=1, stale_after=3.0)
    views = Views(
        node="n",
        node_id="viiwork-1",
        version="1",
        api_port=8086,
        models=(),
        book=book,
        router=router,
        members=tuple,
        clock=clock,
        started=0.0,
        mesh="none",
        gpus=lambda: cards,
    )
    return status_of(views)


def test_figures_that_are_not_known_are_absent_and_zero_is_there() -> None:
    known = Gpu(
        0,
        Vendor.AMD,
        "GPU-2180a33f6fc21c65",
        name="AMD Radeon VII",
        target="gfx906",
        pci="0000:03:00.0",
        memory_total=16368,
        memory_used=10,
        utilisation=0.0,
        power=17.0,
    )
    assert status((known, Gpu(1, Vendor.AMD)))["gpus"] == [
        {
            "index": 0,
            "uuid": "GPU-2180a33f6fc21c65",
            "name": "AMD Radeon VII",
            "vendor": "amd",
            "target": "gfx906",
            "util": 0.0,
            "vram_used_mb": 10,
            "vram_total_mb": 16368,
            "power_w": 17.0,
        },
        {"index": 1, "vendor": "amd"},
    ]


def test_no_cards_are_an_empty_list_and_unknown_ones_none_at_all() -> None:
    assert status(())["gpus"] == []
    assert "gpus" not in status(None)


@pytest.mark.parametrize(("vendor", "warnings"), [(Vendor.AMD, 0), (Vendor.NONE, 1)])
def test_backends_know_whose_cards_they_have(vendor: Vendor, warnings: int) -> None:
    config = ModelConfig(name="m", engine="fake", context=4096, gpus=(0, 1))
    model = ResolvedModel(config, FakeEngine, FakeOptions(), None)
    with capture_logs() as logs:
        made = plan(model, lambda name: kit_context(Path()), caches=Path("caches"), share=False, vendor=vendor)
    assert [one.spec.vendor for one in made.backends] == [vendor, vendor]
    assert [entry["event"] for entry in logs] == ["no card is pinned"] * warnings

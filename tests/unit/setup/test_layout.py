"""The layout that is proposed: what always holds, and known machines."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from viiwork_core import FoundModel, Vendor
from viiwork_core.engines.gpus.gpu import Gpu
from viiwork_core.setup.hardware import GIB, KEPT, MIB, Hardware
from viiwork_core.setup.layout import CARD_OVERHEAD, CONTEXTS, Line, contexts, names, need, propose, shortages
from viiwork_core.setup.scan import Recognised

ON_CPU = frozenset({"acme"})


def model(name: str, size: float, context: int | None = 131072, token: int | None = 65536) -> Recognised:
    return Recognised("acme", FoundModel(name, Path(f"/m/{name}.bin"), int(size * GIB), "", context, token))


def machine(*cards: float, memory: float = 64, vendor: Vendor = Vendor.NVIDIA) -> Hardware:
    gpus = tuple(Gpu(index, vendor, memory_total=int(size * 1024)) for index, size in enumerate(cards))
    return Hardware(vendor, gpus, int(memory * GIB), 8)


def texts(*found: Recognised, on: Hardware) -> list[str]:
    return [line.text() for line in propose(found, on, on_cpu=ON_CPU).lines]


def test_the_largest_model_first_on_the_fewest_cards() -> None:
    assert texts(model("small", 4), model("large", 30), on=machine(24, 24, 24)) == [
        "large (acme): GPU 0,1, 2 slots of 65536 tokens",
        "small (acme): GPU 2, 2 slots of 65536 tokens",
    ]


def test_the_smallest_card_that_holds_it() -> None:
    layout = propose([model("m", 22), model("n", 10)], machine(80, 24, 12), on_cpu=ON_CPU)
    assert [(line.name, line.gpus) for line in layout.lines] == [("m", (0, 1)), ("n", (2,))]


def test_cards_that_are_left_serve_further_backends_as_large_as_the_first() -> None:
    (line,) = propose([model("m", 20)], machine(24, 8, 24, 24), on_cpu=ON_CPU).lines
    assert (line.gpus, line.gpus_per_backend, line.backends) == ((0, 2, 3), 1, 3)


def test_fewer_slots_before_nothing() -> None:
    (line,) = propose([model("m", 22.4)], machine(24), on_cpu=ON_CPU).lines
    assert (line.context, line.parallel) == (8192, 1)


def test_a_model_without_room_says_how_much_it_needs() -> None:
    layout = propose([model("m", 60), model("n", 10)], machine(24, 24), on_cpu=ON_CPU)
    assert layout.left_out == {
        "m": "it needs 62.5 GiB on 2 cards, which hold 48.0 GiB: the smallest one counts for each",
    }
    assert [line.name for line in layout.lines] == ["n"]


def test_without_a_card_left() -> None:
    layout = propose([model("m", 10), model("n", 9)], machine(24), on_cpu=ON_CPU)
    assert layout.left_out == {"n": "no card is left for it"}


def test_a_cache_of_unknown_size_gets_the_least_context() -> None:
    (line,) = propose([model("m", 10, token=None)], machine(24), on_cpu=ON_CPU).lines
    assert line.context == CONTEXTS[0]
    assert line.need.text() == "11.0 GiB: weights 10.0 GiB, a cache of unknown size, overhead 1.0 GiB"


def test_on_the_processor_all_share_the_memory() -> None:
    layout = propose([model("m", 8), model("n", 5)], machine(memory=24, vendor=Vendor.NONE), on_cpu=ON_CPU)
    assert [(line.name, line.gpus, line.context) for line in layout.lines] == [("m", (), 32768), ("n", (), 16384)]
    assert sum(line.need.total for line in layout.lines) <= 24 * GIB - KEPT


def test_an_engine_that_needs_a_gpu_is_left_out_without_one() -> None:
    layout = propose([model("m", 1)], machine(vendor=Vendor.NONE), on_cpu=frozenset())
    assert layout.left_out == {"m": "acme does not run without a GPU"}


@pytest.mark.parametrize(("memory", "metal"), [(16, 16 * 2 / 3), (36, 24), (64, 48), (128, 96)])
def test_a_mac_plans_with_what_metal_may_use(memory: float, metal: float) -> None:
    found = machine(memory, memory=memory, vendor=Vendor.APPLE)
    assert found.shared == pytest.approx(metal * GIB - max(KEPT, 0.15 * metal * GIB), abs=2)
    (line,) = propose([model("m", 3)], found, on_cpu=ON_CPU).lines
    assert line.gpus == (0,)


def test_a_mac_whose_owner_set_the_limit() -> None:
    assert Hardware(Vendor.APPLE, (), 64 * GIB, 8, wired_limit=60 * GIB).shared == 60 * GIB - int(60 * GIB * 0.15)


@pytest.mark.parametrize(
    ("trained", "proposed"),
    [(None, CONTEXTS), (2048, (2048,)), (8192, (8192,)), (40960, (8192, 16384, 32768, 40960)), (1 << 20, CONTEXTS)],
)
def test_contexts_end_where_training_did(trained: int | None, proposed: tuple[int, ...]) -> None:
    assert contexts(model("m", 1, context=trained).model) == proposed


def test_names_are_none_twice() -> None:
    def at(path: str) -> Recognised:
        return Recognised("acme", FoundModel("qwen", Path(path), 1))

    found = [at("/a/Qwen-Q4.bin"), at("/a/Qwen-Q8.bin"), at("/b/Qwen-Q8.bin"), at("/c/Qwen Q8.bin")]
    assert names(found) == ["qwen", "qwen-q8", "qwen-2", "qwen-3"]


def test_what_somebody_wrote_is_told_where_it_does_not_fit() -> None:
    line = Line("m", "acme", model("m", 30).model, 8192, 1, (0,), on_card=True)
    told = shortages([line], machine(24))
    assert told == {
        "m": "it needs 31.5 GiB: weights 30.0 GiB, cache 0.5 GiB, overhead 1.0 GiB; 1 of its cards hold 24.0 GiB",
    }
    assert shortages([line], machine(48)) == {}


SIZES = st.floats(0.1, 100)
TRAINED = st.sampled_from([None, 2048, 40960, 131072])
TOKENS = st.sampled_from([None, 512, 65536, 262144])


@given(
    st.lists(st.tuples(SIZES, TRAINED, TOKENS), max_size=6),
    st.lists(st.sampled_from([8.0, 16.0, 24.0, 32.0, 80.0]), max_size=6),
    st.sampled_from([Vendor.NVIDIA, Vendor.AMD, Vendor.APPLE, Vendor.NONE]),
)
def test_whatever_is_proposed_fits(
    sizes: list[tuple[float, int | None, int | None]], cards: list[float], vendor: Vendor
) -> None:
    found = [model(f"m{number}", size, context, token) for number, (size, context, token) in enumerate(sizes)]
    hardware = machine(*(cards if vendor is not Vendor.NONE else ()), vendor=vendor)
    layout = propose(found, hardware, on_cpu=ON_CPU)
    assert {line.name for line in layout.lines} | set(layout.left_out) == {one.model.name for one in found}
    assert shortages(layout.lines, hardware) == {}
    used = [index for line in layout.lines for index in line.gpus]
    if hardware.has_cards:
        assert len(set(used)) == len(used)
    for line in layout.lines:
        assert line.context <= (line.model.context or CONTEXTS[-1])
        assert len(line.gpus) % line.gpus_per_backend == 0
        for first in range(0, len(line.gpus), line.gpus_per_backend) if line.on_card else ():
            own = [cards[index] for index in line.gpus[first : first + line.gpus_per_backend]]
            assert line.need.total <= min(own) * 1024 * MIB * len(own)


def test_what_a_need_is_made_of() -> None:
    made = need(model("m", 2).model, 8192, 2, 2)
    assert (made.weights, made.cache, made.overhead) == (2 * GIB, 8192 * 2 * 65536, 2 * CARD_OVERHEAD)

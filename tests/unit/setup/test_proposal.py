"""The proposal as a file, and what the node's own loader says of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from viiwork_core import ConfigError, Vendor
from viiwork_core.config.load import parse_config
from viiwork_core.contracts.recognition import FoundModel
from viiwork_core.engines.gpus.gpu import Gpu
from viiwork_core.registry.entry_points import load_plugins
from viiwork_core.registry.registry import Registry
from viiwork_core.setup.answers import Answers, ApiAnswer, ModelAnswer
from viiwork_core.setup.hardware import GIB, Hardware
from viiwork_core.setup.layout import Line
from viiwork_core.setup.meeting import Meeting
from viiwork_core.setup.proposal import Proposal, judge
from viiwork_core.setup.scan import recognisers, scan
from viiwork_core.setup.selection import selected
from viiwork_core.testing.tiny_model import write_gguf

SECRET = bytes(range(32))


@pytest.fixture(scope="module")
def registry() -> Registry:
    return load_plugins({})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    write_gguf(folder / "Tiny-1B-Q4_0.gguf")
    write_gguf(folder / "Other-2B.gguf")
    (folder / "Half-00001-of-00002.gguf").write_bytes(b"GGUF")
    return folder


def line(name: str = "m", engine: str = "llamacpp", **more: object) -> Line:
    made = Line(name, engine, FoundModel(name, Path(f"/m/{name}.gguf"), 1), 8192)
    return replace(made, **more)  # type: ignore[arg-type]  # fields of Line


def proposal(*lines: Line, meeting: Meeting = Meeting("alone"), api: ApiAnswer = ApiAnswer()) -> Proposal:  # noqa: B008  # frozen
    return Proposal(Path("/etc/viiwork/viiwork.yaml"), "attic", Path("/srv/state"), api, meeting, lines)


def test_only_what_differs_from_the_defaults_is_written() -> None:
    made = proposal(line(gpus=(0, 1), gpus_per_backend=2, share="house"), meeting=Meeting("secured", SECRET))
    assert made.document() == {
        "node": {"name": "attic", "state_dir": "/srv/state"},
        "models": [
            {
                "name": "m",
                "engine": "llamacpp",
                "path": "/m/m.gguf",
                "context": 8192,
                "parallel": 2,
                "gpus": [0, 1],
                "gpus_per_backend": 2,
                "kv_share": {"group": "house", "min_tokens": 4096},
            }
        ],
    }
    longer = proposal(line(context=16384, share="house")).document()["models"][0]
    assert longer["kv_share"] == {"group": "house"}
    assert proposal(api=ApiAnswer(port=9000)).document()["api"] == {"port": 9000}
    assert parse_config(made.text(), {}).models[0].kv_share is not None


def test_the_secret_stands_in_a_file_of_its_own_and_is_not_shown() -> None:
    config, environment = proposal(meeting=Meeting("secured", SECRET)).files(Path("/etc/viiwork/viiwork.env"))
    assert (config.mode, environment.mode) == (0o644, 0o600)
    assert environment.shown() == "VIIWORK_MESH_SECRET=***\n"
    assert environment.text != environment.shown()
    assert len(proposal().files(Path("/e"))) == 1


def test_the_loader_is_asked(registry: Registry) -> None:
    assert judge(proposal(line()), {}, registry).well
    twice = judge(proposal(line(), line(gpus=(0, 0))), {}, registry)
    assert not twice.well
    assert twice.refusals == {1: ["models[1].gpus: names a GPU twice; list each index once"]}


def test_every_refusal_stands_under_its_model(registry: Registry) -> None:
    lines = (line(gpus=(0,)), line("n", gpus=(0,)), line("o", engine="acme"), line("p", options={"binary": 3}))
    told = judge(proposal(*lines), {}, registry)
    assert sorted(told.refusals) == [1, 2, 3]
    assert told.refusals[1] == ["models[1].gpus: GPU 0 belongs to models[0] already; give each GPU to one model"]
    assert told.refusals[3][0].startswith("models[3].llamacpp.binary: must be text")


def test_what_is_about_no_model_is_told_too(registry: Registry) -> None:
    told = judge(proposal(meeting=Meeting("open", network="nosuch")), {}, registry)
    assert told.config is None
    assert told.others[0].startswith("mesh.network")


CPU = Hardware(Vendor.NONE, (), 32 * GIB, 4)


def layout(folder: Path, registry: Registry, answers: Answers, hardware: Hardware = CPU) -> tuple[Line, ...]:
    engines = recognisers(registry)
    return selected(answers, scan(folder, engines), hardware, registry, engines).lines


def test_all_that_is_found_is_served_where_nothing_is_said(folder: Path, registry: Registry) -> None:
    lines = layout(folder, registry, Answers(kv_share="house"))
    assert sorted((one.name, one.share) for one in lines) == [("other-2b", "house"), ("tiny-1b", "house")]


def test_what_was_answered_wins(folder: Path, registry: Registry) -> None:
    one = ModelAnswer(path=folder / "Tiny-1B-Q4_0.gguf", name="t", context=4096, parallel=3, options={"threads": 2})
    (made,) = layout(folder, registry, Answers(models=(one,)))
    assert made.entry() == {
        "name": "t",
        "engine": "llamacpp",
        "path": str(folder / "Tiny-1B-Q4_0.gguf"),
        "context": 4096,
        "parallel": 3,
        "llamacpp": {"threads": 2},
    }


def test_cards_that_were_answered_are_proposed_for_no_other(folder: Path, registry: Registry) -> None:
    cards = tuple(Gpu(index, Vendor.NVIDIA, memory_total=24 * 1024) for index in range(3))
    hardware = Hardware(Vendor.NVIDIA, cards, 32 * GIB, 4)
    first = ModelAnswer(path=folder / "Tiny-1B-Q4_0.gguf", gpus=(0, 2))
    other = ModelAnswer(path=folder / "Other-2B.gguf")
    lines = layout(folder, registry, Answers(models=(first, other)), hardware)
    assert [(one.gpus, one.gpus_per_backend, one.on_card) for one in lines] == [((0, 2), 2, True), ((1,), 1, True)]


def test_models_elsewhere_are_looked_at_where_they_lie(folder: Path, registry: Registry, tmp_path: Path) -> None:
    answers = Answers(models=(ModelAnswer(path=folder / "Other-2B.gguf"),))
    engines = recognisers(registry)
    assert [one.name for one in selected(answers, None, CPU, registry, engines).lines] == ["other-2b"]
    assert [one.name for one in layout(tmp_path, registry, answers)] == ["other-2b"]


def test_an_engine_that_is_named_takes_what_it_does_not_know(registry: Registry, tmp_path: Path) -> None:
    (tmp_path / "Odd.weights").write_bytes(bytes(5))
    one = ModelAnswer(path=tmp_path / "Odd.weights", engine="llamacpp")
    (made,) = layout(tmp_path, registry, Answers(models=(one,)))
    assert (made.name, made.engine, made.model.bytes) == ("odd", "llamacpp", 5)


def test_all_models_that_are_not_what_they_should_be_are_told(folder: Path, registry: Registry) -> None:
    paths = ("Half-00001-of-00002.gguf", "gone.gguf")
    answers = Answers(models=tuple(ModelAnswer(path=folder / path) for path in paths))
    with pytest.raises(ConfigError) as caught:
        layout(folder, registry, answers)
    first, second = caught.value.message.splitlines()
    assert first == f"models[0].path: {folder}/{paths[0]}: part 2 of 2 is missing; fetch all parts of it"
    assert second == f"models[1].path: {folder}/gone.gguf does not exist; correct the path, or name its engine"

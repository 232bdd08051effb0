"""The models of a node, as the configuration and the operator change them."""

from __future__ import annotations

from pathlib import Path

import pytest

from viiwork_core import Context, PluginOptions
from viiwork_core.config.schema import KvShareConfig, ModelConfig
from viiwork_core.errors import ConfigError, InvalidRequest, PluginError
from viiwork_core.node.models import OPENAI_PATHS, Changes, Models
from viiwork_core.node.plans import Planned, plan
from viiwork_core.registry.options import ResolvedModel
from viiwork_core.testing.engine_kit import kit_context
from viiwork_core.testing.fake_plugin import FakeEngine, FakeOptions


def model(name: str, engine: type[FakeEngine] = FakeEngine, **fields: object) -> ResolvedModel:
    config = ModelConfig.model_validate({"name": name, "engine": engine.name, "context": 4096, **fields})
    return ResolvedModel(config, engine, FakeOptions(), None)


def made(resolved: ResolvedModel) -> Planned:
    return plan(resolved, lambda name: kit_context(Path()), caches=Path("caches"), share=False)


class Refuses(FakeEngine):
    name = "refuses"

    def __init__(self, options: PluginOptions, context: Context) -> None:
        raise ConfigError("options disagree", remedy="make up your mind")


class Fails(FakeEngine):
    name = "fails"

    def __init__(self, options: PluginOptions, context: Context) -> None:
        raise LookupError("a bug")


def test_only_what_differs_is_made_anew() -> None:
    models = Models([model("a"), model("b"), model("c")], made)
    before = {one.name: one for one in models}
    changes = models.replace([model("d"), model("b", parallel=2), model("a", env={}, gpus_per_backend=1)])
    assert changes == Changes(added=("d",), removed=("c",), changed=("b",), kept=("a",))
    after = {one.name: one for one in models}
    assert list(after) == ["d", "b", "a"]
    assert after["a"] is before["a"]
    assert after["b"] is not before["b"]
    assert [one.id for one in models.backends] == ["d/0", "b/0", "a/0"]


@pytest.mark.parametrize(
    "fields",
    [
        {"env": {"A": "1"}},
        {"args": ["-x"]},
        {"context": 8192},
        {"fake": {"load_seconds": 1}},
        {"kv_share": KvShareConfig(group="g")},
    ],
)
def test_every_key_counts(fields: dict[str, object]) -> None:
    models = Models([model("a")], made)
    assert models.replace([model("a", **fields)]).changed == ("a",)


def test_a_list_that_cannot_be_made_changes_nothing_and_all_reasons_are_told() -> None:
    models = Models([model("a")], made)
    (before,) = models
    with pytest.raises(ConfigError) as caught:
        models.replace([model("a", parallel=2), model("b", Refuses), model("c", Fails)])
    first, second = caught.value.message.splitlines()
    assert first == "model b: options disagree; make up your mind"
    assert second == "making the engine fails failed: LookupError: a bug"
    assert list(models) == [before]
    with pytest.raises(PluginError, match="a bug"):
        models.replace([model("c", Fails)])


def test_the_wire_of_a_model_that_is_gone_stays_known() -> None:
    models = Models([model("a")], made)
    assert models.endpoints() == OPENAI_PATHS | FakeEngine.wire.endpoints
    models.replace([])
    assert (list(models), models.endpoints()) == ([], OPENAI_PATHS)
    assert models.wires["a"] is FakeEngine.wire


def test_parking_names_what_is_news() -> None:
    models = Models([model("a"), model("b")], made)
    assert models.park(["b", "b"], parked=True) == {"b": True}
    assert models.park(None, parked=True) == {"a": True, "b": False}
    assert models.parked == {"a", "b"}
    assert models.park(["a"], parked=False) == {"a": True}
    with pytest.raises(InvalidRequest, match="not served by this node: x, y") as caught:
        models.park(["a", "y", "x"], parked=True)
    assert caught.value.remedy == "its models: a, b"
    assert models.parked == {"b"}


def test_parked_outlives_a_change_and_not_a_removal() -> None:
    models = Models([model("a"), model("b")], made)
    models.park(None, parked=True)
    models.replace([model("a", parallel=2)])
    assert models.parked == {"a"}
    models.replace([model("a", parallel=2), model("b")])
    assert models.parked == {"a"}

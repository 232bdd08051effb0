"""From a model's configuration to its backends: launched ones by GPUs, attached ones by addresses."""

from __future__ import annotations

from pathlib import Path

import pytest

from viiwork_core import Address, ConfigError, PluginError
from viiwork_core.builtin.external import External, ExternalOptions
from viiwork_core.config.schema import ModelConfig
from viiwork_core.node.plans import Planned, plan
from viiwork_core.registry.options import ResolvedModel
from viiwork_core.testing.engine_kit import kit_context
from viiwork_core.testing.fake_plugin import FakeCacheTransfer, FakeEngine, FakeOptions


def planned(model: ResolvedModel) -> Planned:
    return plan(model, lambda name: kit_context(Path()), caches=Path("caches"), share=False)


def attached(engine: type[External] = External, **block: object) -> ResolvedModel:
    config = ModelConfig(name="m", engine="external", context=4096, parallel=3)
    options = ExternalOptions.model_validate({"urls": ["http://a:1", "https://b/x"], **block})
    return ResolvedModel(config, engine, options, None)


def test_an_engine_that_attaches_has_a_backend_for_each_address() -> None:
    made = planned(attached(model="theirs"))
    assert [one.address for one in made.backends] == [Address("a", 1), Address("b", 443, tls=True, base="/x")]
    assert [(one.id, one.spec.index, one.spec.backends, one.spec.parallel) for one in made.backends] == [
        ("m/0", 0, 2, 3),
        ("m/1", 1, 2, 3),
    ]
    assert made.wire.model == "theirs"


def test_an_engine_that_starts_its_servers_has_a_backend_for_each_group_of_gpus() -> None:
    config = ModelConfig(name="m", engine="fake", context=4096, gpus=(4, 5, 6, 7), gpus_per_backend=2)
    made = planned(ResolvedModel(config, FakeEngine, FakeOptions(), None))
    assert [(one.address, one.spec.gpus, one.spec.backends) for one in made.backends] == [
        (None, (4, 5), 2),
        (None, (6, 7), 2),
    ]
    assert made.wire is FakeEngine.wire


def test_a_key_that_is_not_there_names_the_model_and_the_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SERVERS_KEY", raising=False)
    with pytest.raises(ConfigError, match=r"^model m: external\.api_key_env: .* SERVERS_KEY is not set") as caught:
        planned(attached(api_key_env="SERVERS_KEY"))
    assert caught.value.remedy


class Nowhere(External):
    def addresses(self) -> tuple[Address, ...]:
        return ()


class Bug(External):
    def addresses(self) -> tuple[Address, ...]:
        raise LookupError("a bug")


@pytest.mark.parametrize(
    ("engine", "words"), [(Nowhere, "attaches to no server"), (Bug, "making the engine external failed: LookupError")]
)
def test_an_engine_that_fails_is_its_plugins_error(engine: type[External], words: str) -> None:
    with pytest.raises(PluginError, match=words):
        planned(attached(engine))


def test_models_whose_names_differ_have_cache_folders_that_differ() -> None:
    names = ("a", ".a", "..a", "%2ea", "org/a", "org%2fa", "a-0", "\u02fa", "/a", "model", "...", "\u6a21\u578b")
    folders = []
    for name in names:
        model = ResolvedModel(
            ModelConfig(name=name, engine="fake", context=4096), FakeEngine, FakeOptions(), FakeCacheTransfer
        )
        made = plan(model, lambda _: kit_context(Path()), caches=Path("caches"), share=True)
        folders.append(made.backends[0].spec.cache_dir)
    assert len(set(folders)) == len(names)
    for folder in folders:
        assert folder is not None
        assert folder.parent == Path("caches"), "a part of the path, whatever the name"
        assert not folder.name.startswith(".")

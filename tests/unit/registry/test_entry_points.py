"""Loading: each plugin by itself, each failure a value."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from viiwork_core.builtin.policies import LeastBusy
from viiwork_core.contracts.version import API_MAJOR, API_MINOR
from viiwork_core.errors import ConfigError
from viiwork_core.registry.entry_points import load_plugins
from viiwork_core.registry.registry import LoadRecord, Registry

from .conftest import ENGINE, Install

Load = Callable[..., Registry]

API = f"{API_MAJOR}.{API_MINOR}"
NEXT = f"{API_MAJOR}, {API_MINOR + 1}"
NEXT_SAID = f"{API_MAJOR}.{API_MINOR + 1}"


def record(registry: Registry, entry_point: str) -> LoadRecord:
    (found,) = [record for record in registry.records if record.entry_point == entry_point]
    return found


def hook(body: str, name: str = "viiwork_register_policy") -> str:
    return f"from viiwork_core import *\n@hookimpl\ndef {name}():\n    {body}\n"


def test_the_built_ins_load_like_any_plugin(load: Load) -> None:
    found = record(load(), "builtin")
    assert (found.distribution, found.state, found.api) == ("viiwork", "loaded", (API_MAJOR, API_MINOR))
    policies = {("policy", name) for name in ("fastest", "cache_aware", "least_busy", "round_robin")}
    assert set(found.provides) == {("engine", "external"), ("discovery", "seeds"), *policies}


def test_a_strangers_plugin_loads(install: Install, load: Load) -> None:
    install("acme", "VIIWORK_API = (1, 0)\n" + ENGINE, distribution="acme-for-viiwork")
    registry = load("acme")
    found = record(registry, "acme")
    assert found == LoadRecord(
        "acme-for-viiwork",
        "1.2",
        "acme",
        "loaded",
        api=(1, 0),
        provides=(("engine", "acme"), ("engine", "acme_cpu"), ("cache", "acme_cpu")),
    )
    assert registry.engine("acme").name == "acme"
    assert registry.cache_transfer("acme_cpu").engine == "acme_cpu"


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("raise RuntimeError('no\\n luck')", "import failed: RuntimeError: no luck"),
        ("import not_there_at_all", "import failed: ModuleNotFoundError: No module named 'not_there_at_all'"),
        ("import sys; sys.exit(3)", "import failed: SystemExit: 3"),
        ("def broken(:", "import failed: SyntaxError"),
        ("VIIWORK_API = (2, 0)", f"it is written for plugin API 2.0, and this viiwork has {API}: update viiwork"),
        ("VIIWORK_API = (0, 9)", f"it is written for plugin API 0.9, and this viiwork has {API}: update the plugin"),
        (f"VIIWORK_API = ({NEXT})", f"it is written for plugin API {NEXT_SAID}, and this viiwork has {API}: update"),
        ("VIIWORK_API = '1.0'", "VIIWORK_API is not a pair of numbers"),
        (hook("return 5"), "viiwork_register_policy returned an object of type int, which is no subclass of Policy"),
        (hook("return [Policy, 'x']"), "Policy does not implement rank"),
        (hook("return Engine"), "viiwork_register_policy returned Engine, which is no subclass of Policy"),
        (hook("raise KeyError('x')"), "viiwork_register_policy failed: KeyError: 'x'"),
        (hook("return type('P', (Policy,), {'rank': len, 'name': 'Not A Word'})"), "P.name is not a lowercase word"),
        (hook("return type('P', (Policy,), {'rank': len})"), "P.name is not a lowercase word"),
        (hook("return type('P', (Policy,), {'rank': len, 'name': 'p', 'Options': dict})"), "P.Options is no subclass"),
        (hook("return 5").replace("def ", "async def "), "viiwork_register_policy is a coroutine function"),
        (hook("return None", "viiwork_register_nothing_known"), "registration failed: PluginValidationError"),
        (hook("return None").replace("()", "(node)"), "registration failed: PluginValidationError"),
        (ENGINE.replace("wire =", "wires ="), "Acme.wire is not a Wire"),
    ],
)
def test_a_failure_is_kept_with_its_reason_and_harms_no_other(
    install: Install, load: Load, source: str, reason: str
) -> None:
    install("bad", source)
    install("acme", ENGINE)
    registry = load("bad", "acme")
    bad = record(registry, "bad")
    assert bad.state == "failed"
    assert bad.reason.startswith(reason)
    assert "\n" not in bad.reason
    assert registry.failed == (bad,)
    assert registry.policy("least_busy") is LeastBusy
    assert registry.engine("acme").name == "acme"


def test_what_a_failed_plugin_offered_before_cannot_be_used_and_says_why(install: Install, load: Load) -> None:
    install("half", ENGINE.replace("return AcmeCache", "raise OSError('cut')"), distribution="half-done")
    registry = load("half")
    assert ("engine", "acme") in record(registry, "half").provides
    with pytest.raises(
        ConfigError, match=r"engine acme cannot be used: the plugin half of half-done 1.2 is failed: viiw"
    ):
        registry.engine("acme")


def test_a_plugin_without_hooks_offers_nothing(install: Install, load: Load) -> None:
    install("empty", "x = 1")
    found = record(load("empty"), "empty")
    assert (found.state, found.provides) == ("loaded", ())


def test_two_plugins_of_one_name_are_both_refused(install: Install, load: Load) -> None:
    install("one", ENGINE, distribution="dist-one")
    install("two", ENGINE.replace('"acme_cpu"', '"other_cpu"'), distribution="dist-two")
    registry = load("one", "two")
    assert registry.names("engine") == ("acme_cpu", "external", "other_cpu")
    with pytest.raises(ConfigError, match=r"registered by dist-one 1.2 and dist-two 1.2"):
        registry.engine("acme")
    failed = {(found.distribution, found.provides) for found in registry.records if found.state == "failed"}
    assert failed == {("dist-one", (("engine", "acme"),)), ("dist-two", (("engine", "acme"),))}
    loaded = {found.distribution for found in registry.records if found.state == "loaded"}
    assert loaded == {"viiwork", "dist-one", "dist-two"}


def test_a_stranger_cannot_stand_in_for_a_built_in(install: Install, load: Load) -> None:
    install("mine", hook("return type('P', (Policy,), {'rank': len, 'name': 'least_busy'})"))
    with pytest.raises(ConfigError, match=r"registered by viiwork .* and viiwork-mine 1.2"):
        load("mine").policy("least_busy")


def test_the_allow_list_leaves_out_the_rest_unimported(install: Install, load: Load) -> None:
    install("acme", ENGINE)
    install("bomb", "raise RuntimeError")
    registry = load("acme")
    assert record(registry, "bomb").state == "not chosen"
    assert record(registry, "builtin").state == "loaded"
    with pytest.raises(ConfigError, match="not named in VIIWORK_PLUGINS") as caught:
        registry.engine("bomb")
    assert caught.value.remedy == "change VIIWORK_PLUGINS to allow it"


def test_the_block_list_wins_except_over_the_built_ins(install: Install, load: Load) -> None:
    install("acme", ENGINE)
    registry = load("acme", VIIWORK_BLOCK=" acme, builtin ,")
    assert record(registry, "acme").state == "blocked"
    assert record(registry, "builtin").state == "loaded"
    with pytest.raises(ConfigError, match="named in VIIWORK_BLOCK"):
        registry.engine("acme")


def test_a_name_in_a_list_that_nothing_has_is_told(install: Install, load: Load) -> None:
    install("acme", ENGINE)
    registry = load("acme", "amce", VIIWORK_BLOCK="other")
    found = {(one.entry_point, one.state, one.reason) for one in registry.failed}
    assert found == {
        ("amce", "failed", "VIIWORK_PLUGINS names amce, and nothing installed is called so; did you mean acme?"),
        ("other", "failed", "VIIWORK_BLOCK names other, and nothing installed is called so"),
    }
    with pytest.raises(ConfigError, match=r"no engine amce is installed .*; failed to load: amce, other"):
        registry.engine("amce")


def test_only_the_core_is_builtin(install: Install, load: Load) -> None:
    install("builtin", "raise RuntimeError", distribution="sly")
    states = {found.distribution: found.state for found in load().records if found.entry_point == "builtin"}
    assert states == {"viiwork": "loaded", "sly": "not chosen"}


def test_without_lists_everything_installed_is_loaded(install: Install) -> None:
    install("acme", ENGINE, distribution="acme-of-somebody")
    assert any(found.distribution == "acme-of-somebody" for found in load_plugins({}).records)

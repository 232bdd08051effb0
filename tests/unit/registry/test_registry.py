"""Looking names up."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from viiwork_core.builtin.policies import LeastBusy
from viiwork_core.builtin.seeds import Seeds
from viiwork_core.errors import ConfigError
from viiwork_core.registry.registry import Registry

from .conftest import ENGINE, Install

Load = Callable[..., Registry]


def test_names_are_found(load: Load) -> None:
    registry = load()
    assert registry.policy("least_busy") is LeastBusy
    assert registry.discovery("seeds") is Seeds
    assert registry.discoveries("seeds") == (Seeds,)
    assert registry.discoveries("lan") == ()


def test_an_unknown_name_lists_what_is_installed_and_what_to_install(install: Install, load: Load) -> None:
    install("acme", ENGINE)
    registry = load("acme")
    with pytest.raises(ConfigError) as caught:
        registry.engine("fast_one")
    assert caught.value.message == "no engine fast_one is installed (installed: acme, acme_cpu, external)"
    assert caught.value.remedy == "pip install viiwork-fast-one"
    with pytest.raises(ConfigError) as caught:
        registry.engine("acne")
    assert caught.value.remedy == "did you mean acme? or pip install viiwork-acne"


@pytest.mark.parametrize(
    ("find", "message", "remedy"),
    [
        (lambda r: r.engine("x"), "no engine x is installed (installed: external)", "pip install viiwork-x"),
        (
            lambda r: r.discovery("x"),
            "no discovery x is installed (installed: seeds)",
            "pip install viiwork-discovery-x",
        ),
        (lambda r: r.cache_transfer("x"), "x has no cache transfer (installed: none)", "pip install viiwork-x"),
        (lambda r: r.policy("--index-url evil"), "no routing policy --index-url evil is installed", ""),
    ],
)
def test_each_kind_by_its_own_convention(
    load: Load, find: Callable[[Registry], object], message: str, remedy: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        find(load())
    assert caught.value.message.startswith(message)
    assert caught.value.remedy == remedy


def test_a_failed_plugin_that_is_used_tells_its_reason(install: Install, load: Load) -> None:
    install("acme", "raise OSError('no driver')")
    with pytest.raises(ConfigError) as caught:
        load("acme").engine("acme")
    assert caught.value.message == (
        "engine acme cannot be used: the plugin acme of viiwork-acme 1.2 is failed: import failed: OSError: no driver"
    )
    assert caught.value.remedy == "repair or update it: pip install --upgrade viiwork-acme"


def test_a_failed_plugin_of_another_name_is_mentioned(install: Install, load: Load) -> None:
    install("odd", "raise OSError", distribution="oddly-named")
    with pytest.raises(ConfigError, match="failed to load: oddly-named"):
        load("odd").engine("acme")

"""api.catalog: what stands in it, and what is read over."""

from __future__ import annotations

import pytest

from viiwork_core.config.catalog import CatalogConfig
from viiwork_core.config.load import parse_config
from viiwork_core.errors import ConfigError


def read(text: str) -> CatalogConfig:
    return parse_config(f"api: {{catalog: {text}}}", {"HOME": "/nowhere"}).api.catalog


def test_the_defaults_are_the_reference_s() -> None:
    one = read("{}")
    assert (one.enabled, one.provider_id, one.provider_name, one.base_url) == (True, "viiwork", " viiwork", "")


@pytest.mark.parametrize("key", ["provider_id: a/b", "provider_id: a b", "provider_id: ''", "base_url: llm.example"])
def test_what_no_client_could_use_is_refused(key: str) -> None:
    with pytest.raises(ConfigError, match=rf"api\.catalog\.{key.partition(':')[0]} "):
        read(f"{{{key}}}")
    assert read(f"{{enabled: false, {key}}}") == CatalogConfig(enabled=False), "nothing of one that is off is looked at"


@pytest.mark.parametrize("url", ["http://box:8086", "http://box:8086/", "http://box:8086/v1", "http://box:8086/v1/"])
def test_a_base_is_what_stands_before_v1(url: str) -> None:
    assert read(f"{{base_url: '{url}'}}").base_url == "http://box:8086"

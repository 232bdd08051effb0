"""Models whose engine starts nothing: what they need, and which keys have no meaning for them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from viiwork_core.builtin.external import External
from viiwork_core.config.load import parse_config
from viiwork_core.errors import ConfigError
from viiwork_core.registry.options import ResolvedModel, resolve
from viiwork_core.registry.registry import Registry

Load = Callable[..., Registry]


def read(load: Load, models: str) -> tuple[ResolvedModel, ...]:
    return resolve(parse_config(f"mesh: {{network: none}}\nmodels:\n{models}", {"HOME": "/h"}), load()).models


def test_an_external_model_needs_no_more_than_its_urls(load: Load) -> None:
    (found,) = read(load, "- {name: m, engine: external, context: 4096, external: {urls: ['http://127.0.0.1:9001']}}")
    assert (found.engine, found.options.model_dump()["urls"]) == (External, ("http://127.0.0.1:9001",))


def test_every_problem_names_its_key_and_hides_its_value(load: Load) -> None:
    text = """- name: a
  engine: external
  context: 4096
  path: /models/a.gguf
  gpus: [0]
  args: [--x]
  env: {A: b}
  startup_timeout: 10s
  external:
    urls: ["http://127.0.0.1:9001", "http://me:secret@a"]
    api_key_env: "sk-secret"
    modle: b
- {name: b, engine: external, context: 4096}
- {name: c, engine: external, context: 4096, kv_share: {group: g}, external: {urls: ['http://a', 'http://a:80/v1']}}
"""
    with pytest.raises(ConfigError) as caught:
        read(load, text)
    process = "has no meaning for external, whose servers run already; remove it"
    assert caught.value.message.splitlines() == [
        f"models[0].path (line 6): {process}",
        f"models[0].gpus (line 7): {process}",
        f"models[0].args (line 8): {process}",
        f"models[0].env (line 9): {process}",
        f"models[0].startup_timeout (line 10): {process}",
        "models[0].external.urls[1] (line 12): must hold no user and password; "
        "put a key into a variable and name that in api_key_env",
        "models[0].external.api_key_env (line 13): must be the name of an environment variable; "
        "put the key into that variable, not here",
        "models[0].external.modle (line 14): unknown key; did you mean model?",
        "models[1].external.urls (line 15): missing; add it",
        "models[2].kv_share (line 16): external has no cache transfer (installed: none); pip install viiwork-external",
        "models[2].external.urls (line 16): names a server twice; list each once, and raise parallel for more slots",
    ]

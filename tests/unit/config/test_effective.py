"""The effective values: all keys, written as a file has them, and read as the same again."""

from __future__ import annotations

from typing import Any

from viiwork_core.config.document import dump
from viiwork_core.config.effective import effective
from viiwork_core.config.load import parse_config
from viiwork_core.config.masks import MASK, Masks
from viiwork_core.config.schema import Config

ENV = {"HOME": "/h", "XDG_STATE_HOME": "/x"}

WHOLE = """
node: {name: "on", state_dir: /srv/v}
api: {max_body: 1MiB, max_inflight_bytes: 1000000000}
mesh: {seeds: ["192.0.2.7:7946"], rejoin_interval: 1h30m, radio: {channel: 1}}
routing: {policy: acme, acme: {x: 1, why: null}, queue_timeout: 250ms}
gpu: {vendor: amd}
models:
- {name: m, engine: acme, acme: {deep: {er: [1, "1", "off", "1:30"]}}, context: 4096, gpus: [0, 1],
   startup_timeout: 90s, args: [--x, "5"], env: {A: "007", "ON": "é\\n"}, kv_share: {group: g, max_gib: 0.5}}
- {name: n, engine: acme, context: 1}
"""


def values(config: Config, *, masks: Masks | None = None, **more: Any) -> dict[str, Any]:
    given = {"blocks": {}, "meaningless": (), "masks": masks or Masks({}), **more}
    return effective(config, **given)


def read(text: str) -> Config:
    return parse_config(text, ENV)


def test_what_is_shown_is_the_same_configuration() -> None:
    config = read(WHOLE)
    again = read(dump(values(config)))
    assert again.model_dump() == config.model_dump()
    assert again.models[0].block == {"deep": {"er": [1, "1", "off", "1:30"]}}


def test_every_key_of_the_core_is_there() -> None:
    shown = values(read("models: [{name: m, engine: e, context: 1, kv_share: {group: g}}]"))
    assert shown.keys() == Config.model_fields.keys()
    for name, field in Config.model_fields.items():
        if name != "models":
            assert shown[name].keys() == field.annotation.model_fields.keys()  # type: ignore[union-attr]  # a block
    told = {"group": "g", "min_tokens": 8192, "max_gib": 16.0, "bandwidth_mbit": 0.0, "parallel_transfers": 1}
    assert shown["models"][0]["kv_share"].items() >= {**told, "address": None}.items()


def test_values_are_written_as_in_a_file() -> None:
    shown = values(read(""))
    assert (shown["health"]["interval"], shown["api"]["max_body"]) == ("5s", "32MiB")
    assert shown["node"]["state_dir"] in {"/x/viiwork", "/var/lib/viiwork"}


def test_options_stand_in_place_of_what_was_written() -> None:
    config = read("models: [{name: m, engine: acme, context: 1, acme: {x: '1'}}]")
    blocks = {("models", 0, "acme"): {"x": 1, "y": 2}, ("mesh", "radio"): {"channel": 3}}
    shown = values(config, blocks=blocks)
    assert shown["models"][0]["acme"] == {"x": 1, "y": 2}
    assert shown["mesh"]["radio"] == {"channel": 3}


def test_keys_without_a_meaning_are_left_out() -> None:
    config = read("models: [{name: m, engine: acme, context: 1}]")
    shown = values(config, meaningless=[("models", 0, "path"), ("models", 0, "not there")])
    assert "path" not in shown["models"][0]


def test_secrets_are_masked() -> None:
    config = read(
        """
mesh: {radio: {key: hunter2}}
routing: {policy: acme, acme: {token: hunter2}}
models:
- {name: m, engine: acme, context: 1, args: [--api-key, hunter2], env: {HF_TOKEN: hunter2}, acme: {secret: hunter2}}
"""
    )
    text = dump(values(config))
    assert "hunter2" not in text
    assert text.count(MASK) == 5
    assert "VIIWORK_MESH_SECRET_PREV" in text
    assert "secret_enforce: full" in text

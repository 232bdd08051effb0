"""api.keys: what an entry may say, and where there may be none."""

from __future__ import annotations

import json
from typing import Any

import pytest

from viiwork_core.config.load import parse_config
from viiwork_core.config.schema import Config
from viiwork_core.errors import ConfigError
from viiwork_core.security.keys import MAX_KEYS, ApiKey, digest_of, hash_text

ENV = {"HOME": "/home/somebody"}
HASH = hash_text(digest_of("x"))
OTHER = hash_text(digest_of("y"))
OPEN = {"open": True, "network": "seeds", "seeds": ["192.0.2.7:7946"]}


def read(*keys: Any, **mesh: Any) -> Config:
    return parse_config(json.dumps({"api": {"keys": keys}, "mesh": mesh or {"network": "none"}}), ENV)


def refused(*keys: Any, **mesh: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        read(*keys, **mesh)
    return caught.value.message


def test_there_are_so_many_and_no_more() -> None:
    many = [{"name": f"k{number}", "hash": hash_text(digest_of(str(number)))} for number in range(MAX_KEYS + 1)]
    assert len(read(*many[1:]).api.keys) == MAX_KEYS
    assert "api.keys" in refused(*many)


def test_an_entry_is_a_key() -> None:
    limits = {"weight": 3, "daily_tokens": 5, "models": ["m", "org/model:Q4"]}
    one, two = read({"name": "a", "hash": HASH, **limits}, {"name": "b.c_D-1", "hash": OTHER}).api.keys
    assert one.key == ApiKey("a", digest_of("x"), 3, 5, ("m", "org/model:Q4"))
    assert two.key == ApiKey("b.c_D-1", digest_of("y"))


@pytest.mark.parametrize(
    ("entry", "where"),
    [
        ({}, "api.keys[0].name"),
        ({"name": "a"}, "api.keys[0].hash"),
        ({"name": "", "hash": HASH}, "api.keys[0].name"),
        ({"name": "-a", "hash": HASH}, "api.keys[0].name"),
        ({"name": "a b", "hash": HASH}, "api.keys[0].name"),
        ({"name": "a\n", "hash": HASH}, "api.keys[0].name"),
        ({"name": "a" * 65, "hash": HASH}, "api.keys[0].name"),
        ({"name": "a", "hash": "vwk_secret"}, "api.keys[0].hash"),
        ({"name": "a", "hash": HASH + "\n"}, "api.keys[0].hash"),
        ({"name": "a", "hash": HASH, "weight": 0}, "api.keys[0].weight"),
        ({"name": "a", "hash": HASH, "weight": 1001}, "api.keys[0].weight"),
        ({"name": "a", "hash": HASH, "daily_tokens": -1}, "api.keys[0].daily_tokens"),
        ({"name": "a", "hash": HASH, "models": ["m", "a b"]}, "api.keys[0].models[1]"),
        ({"name": "a", "hash": HASH, "models": ["m"] * 65}, "api.keys[0].models"),
        ({"name": "a", "hash": HASH, "token": "x"}, "api.keys[0].token"),
    ],
)
def test_what_is_wrong_is_named(entry: dict[str, Any], where: str) -> None:
    message = refused(entry)
    assert message.startswith(f"{where} (line 1): ")
    assert "vwk_secret" not in message, "what was put there by mistake may be a token"


def test_names_and_tokens_stand_there_once() -> None:
    first = {"name": "a", "hash": HASH}
    assert refused(first, {"name": "a", "hash": OTHER}) == (
        "api.keys[1].name (line 1): is the name of keys[0] too; rename one"
    )
    assert refused(first, {"name": "b", "hash": HASH}) == (
        "api.keys[1].hash (line 1): is that of keys[0] too; make another token"
    )


def test_an_open_mesh_takes_none() -> None:
    assert refused({"name": "a", "hash": HASH}, **OPEN) == (
        "api.keys (line 1): cannot be kept in an open mesh: any machine could join it and ask without a key; give the "
        "mesh a secret instead of mesh.open, or remove the keys"
    )
    assert read(**OPEN).api.keys == ()
    assert len(read({"name": "a", "hash": HASH}, open=True, network="none").api.keys) == 1

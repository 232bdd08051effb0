"""Files as they come: every kind of damage, and every key of the schema with the wrong value or misspelt."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from viiwork_core.config.descriptions import JsonSchema, describe, resolved
from viiwork_core.config.load import load_config, parse_config
from viiwork_core.config.schema import Config
from viiwork_core.errors import ConfigError

ENV = {"HOME": "/home/somebody"}
BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n" for before, name in zip("abcdef", "bcdefg", strict=True)
)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"node:\n\tname: x\n", "FILE (line 2): is not YAML: found character '\\t' that cannot start any token"),
        (b"node: {name: 'x}\n", "FILE (line 2): is not YAML: found unexpected end of stream"),
        (b"node: name: x\n", "FILE (line 1): is not YAML: mapping values are not allowed here"),
        (b"node: {}\n---\nnode: {}\n", "FILE (line 2): is not YAML: but found another document"),
        (b"node: {}\napi: {port: 1}\nnode: {}\n", "node (line 1): appears twice, on lines 1 and 3"),
        (b"\0", "FILE: is not YAML: unreadable character"),
        (b"- node\n- api\n", "FILE: must be a block of keys, such as node: and models:"),
        (b"node: {name: \xff}\n", "FILE: is not UTF-8 text"),
        ("node: {name: x}\n".encode("utf-16"), "FILE: is not UTF-8 text"),
        (b"#" * (2 << 20), "FILE: is over 1 MiB"),
        (BOMB.encode(), "FILE: its aliases expand to too much"),
        (b"server: {}\nmodel: x\n", "FILE: v1 config: see docs/migrating-to-v2.md"),
        (b"node:\r\n  name: x\r\napi:\r\n  prt: 1\r\n", "api.prt (line 4): unknown key; did you mean port?"),
        (b"models: [null]\n", "models[0] (line 1): must be a block of keys"),
    ],
)
def test_damage_is_told_in_one_line(content: bytes, expected: str, tmp_path: Path) -> None:
    file = tmp_path / "viiwork.yaml"
    file.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        load_config(file, ENV)
    assert caught.value.message == expected.replace("FILE", str(file))


def test_a_tab_is_told_with_its_remedy() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config("node:\n\tname: x\n", ENV)
    assert caught.value.remedy == "indent with spaces, not with tabs"


@pytest.mark.parametrize("content", [b"", b"\xef\xbb\xbfnode: {name: box}\n", b"# nothing\r\n"])
def test_what_is_no_damage(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "viiwork.yaml"
    file.write_bytes(content)
    assert load_config(file, ENV).models == ()


Where = tuple[str, ...]
SCHEMA = describe(Config)
SOUND = {"models": {"name": "m", "engine": "e", "context": 1}, "models.kv_share": {"group": "g"}}


def keys(part: JsonSchema, where: Where = ()) -> Iterator[tuple[Where, JsonSchema]]:
    """Every key of the schema with what it says of the key; what is in a list counts as in its block."""
    for key, value in part.get("properties", {}).items():
        inner = resolved(SCHEMA, value)
        yield (*where, key), inner
        if where or key != "models":
            yield from keys(inner, (*where, key))
        else:
            yield from keys(resolved(SCHEMA, inner["items"]), (key,))


KEYS = dict(keys(SCHEMA))


def wrong(part: JsonSchema) -> Any:
    """A value that the schema of a key forbids."""
    kinds = {part.get("type"), *(one.get("type") for one in part.get("anyOf", ()))}
    return {"x": [1]} if "array" in kinds else [{"x": 1}] if "string" in kinds or "object" in kinds else "x"


def document(where: Where, value: Any) -> dict[str, Any]:
    """A document that is right but for `value` at `where`."""
    for length in range(len(where) - 1, -1, -1):
        value = {**SOUND.get(".".join(where[:length]), {}), where[length]: value}
        value = [value] if where[:length] == ("models",) else value
    return dict(value)


def problems(content: dict[str, Any]) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse_config(yaml.safe_dump(content, sort_keys=False), ENV)
    return caught.value.message.splitlines()


def path(where: Where) -> str:
    return ".".join(where).replace("models.", "models[0].")


def line(content: dict[str, Any], key: str) -> int:
    lines = yaml.safe_dump(content, sort_keys=False).splitlines()
    (found,) = [number for number, text in enumerate(lines, 1) if text.lstrip(" -").startswith(f"{key}:")]
    return found


def test_the_walk_finds_keys_of_each_block() -> None:
    assert {("node",), ("api", "port"), ("models", "context"), ("models", "kv_share", "group")} <= KEYS.keys()
    assert len(KEYS) > 50


@pytest.mark.parametrize("where", KEYS, ids=path)
def test_a_wrong_type_is_told_with_path_and_line(where: Where) -> None:
    content = document(where, wrong(KEYS[where]))
    found = problems(content)
    start = f"{path(where)} (line {line(content, where[-1])}): "
    assert any(told.startswith(start + "must ") for told in found), found


@pytest.mark.parametrize("where", KEYS, ids=path)
def test_a_misspelt_key_is_told_with_the_right_one(where: Where) -> None:
    *block, key = where
    misspelt = (*block, f"{key}x")
    found = problems(document(misspelt, {} if KEYS[where].get("type") == "object" else 1))
    (told,) = [one for one in found if one.startswith(f"{path(misspelt)} ")]
    assert "unknown key" in told
    assert told.endswith(f"did you mean {key}?")


DURATIONS = [where for where, part in KEYS.items() if str(part.get("title")).startswith("duration")]


def test_the_walk_knows_durations() -> None:
    assert {("health", "interval"), ("routing", "queue_timeout"), ("models", "startup_timeout")} <= set(DURATIONS)


@pytest.mark.parametrize("where", DURATIONS, ids=path)
@pytest.mark.parametrize("value", ["-1s", "-20m"])
def test_a_negative_duration_is_told(where: Where, value: str) -> None:
    (told,) = problems(document(where, value))
    assert told.startswith(f"{path(where)} (line ")
    assert told.endswith("): must not be negative")


def test_everything_wrong_is_told_at_once() -> None:
    text = """node: {name: ''}
api: {port: -1, hots: x}
health: {interval: -5s}
mesh: {secret_enforce: none}
models:
- {name: m, engine: e, context: 1, gpus: [0]}
- {name: m, engine: e, context: 1, gpus: [0]}
"""
    with pytest.raises(ConfigError) as caught:
        parse_config(text, ENV)
    assert [one.split(":")[0] for one in caught.value.message.splitlines()] == [
        "node.name (line 1)",
        "api.port (line 2)",
        "api.hots (line 2)",
        "health.interval (line 3)",
        "mesh.secret_enforce (line 4)",
        "models[1].name (line 7)",
        "models[1].gpus (line 7)",
    ]

"""The JSON schema: sound in itself, with all keys, and with the blocks of plugins."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Literal

from pydantic import Field

from viiwork_core.config.descriptions import DIALECT, PluginBlocks, describe, json_schema, resolved
from viiwork_core.config.load import NOT_BUILT
from viiwork_core.config.reference import reference
from viiwork_core.config.schema import Config
from viiwork_core.contracts.options import NoOptions, PluginOptions


class Inner(PluginOptions):
    deep: int = 1
    """How deep."""


class Options(PluginOptions):
    """What acme takes."""

    binary: str
    """Path of acme. None: none | at all."""

    inner: Inner = Inner()
    mode: Literal["a", "b"] = Field(default="a", description="Its own description.")
    """Not this one."""


class MoreOptions(Options):
    """More of it."""

    more: float | None = None


PLUGINS = PluginBlocks(
    engines={"acme": describe(Options), "more": describe(MoreOptions)},
    policies={"fastest": describe(NoOptions), "acme": describe(Inner)},
    discoveries={"radio": describe(Inner), "quiet": describe(NoOptions)},
    networks={"lan": "radio"},
)
SCHEMA = json_schema(PLUGINS)
TYPES = {"string", "integer", "number", "boolean", "object", "array", "null"}


def parts(value: Any) -> Iterator[dict[str, Any]]:
    """Every schema within a schema: keys of `properties` and `$defs` are names, not keywords."""
    if isinstance(value, list):
        for one in value:
            yield from parts(one)
    elif isinstance(value, dict):
        yield value
        for keyword, inner in value.items():
            if keyword in {"properties", "$defs", "dependentSchemas"}:
                for one in inner.values():
                    yield from parts(one)
            elif keyword in {"items", "anyOf", "allOf", "additionalProperties", "if", "then"}:
                yield from parts(inner)


def test_it_is_sound() -> None:
    assert SCHEMA["$schema"] == DIALECT
    assert json.loads(json.dumps(SCHEMA)) == SCHEMA
    for part in parts(SCHEMA):
        if "$ref" in part:
            assert part["$ref"].removeprefix("#/$defs/") in SCHEMA["$defs"]
        assert part.get("type", "object") in TYPES
        assert (
            part.get("type") != "object"
            or "properties" not in part
            or set(part.get("required", ())) <= part["properties"].keys()
        )
        re.compile(part.get("pattern", ""))


def test_every_key_of_the_core_says_what_it_is_and_what_holds_without_it() -> None:
    for name, block in describe(Config)["$defs"].items():
        assert block["description"]
        for key, part in block["properties"].items():
            assert part.get("description"), f"{name}.{key}"
            told = "default" in part or key in block.get("required", ()) or "Default: " in part["description"]
            assert told, f"{name}.{key}"


def test_values_are_described_as_they_are_written() -> None:
    health = SCHEMA["$defs"]["HealthConfig"]["properties"]
    assert (health["interval"]["default"], health["interval"]["type"]) == ("5s", "string")
    assert {"const": 0} in health["respawn_grace"]["anyOf"]
    assert SCHEMA["$defs"]["ApiConfig"]["properties"]["max_body"]["default"] == "32MiB"


def block(name: str) -> dict[str, Any]:
    return dict(SCHEMA["$defs"][name])


def test_a_plugins_block_stands_beside_its_name_only() -> None:
    models, routing = block("ModelConfig"), block("RoutingConfig")
    assert models["properties"]["engine"]["enum"] == ["acme", "more"]
    assert models["dependentSchemas"]["acme"] == {"properties": {"engine": {"const": "acme"}}, "required": ["engine"]}
    assert models["additionalProperties"] is False
    assert routing["dependentSchemas"]["fastest"] == {"properties": {"policy": {"const": "fastest"}}}


def test_a_block_with_required_keys_is_required() -> None:
    named = {"properties": {"engine": {"const": "acme"}}, "required": ["engine"]}
    assert {"if": named, "then": {"required": ["acme"]}} in block("ModelConfig")["allOf"]
    assert "allOf" not in block("RoutingConfig")


def test_plugins_have_definitions_of_their_own() -> None:
    acme = resolved(SCHEMA, block("ModelConfig")["properties"]["acme"])
    assert acme["properties"]["binary"]["description"] == "Path of acme. Unset: none | at all."
    assert acme["properties"]["mode"]["description"] == "Its own description."
    assert resolved(SCHEMA, acme["properties"]["inner"])["properties"]["deep"]["description"] == "How deep."
    more = resolved(SCHEMA, block("ModelConfig")["properties"]["more"])
    assert more["properties"]["binary"] == acme["properties"]["binary"]


def test_a_discovery_is_known_by_its_network_too() -> None:
    mesh = block("MeshConfig")["properties"]
    assert resolved(SCHEMA, mesh["lan"]) == resolved(SCHEMA, mesh["radio"])
    assert mesh["lan"]["description"] == "The same as radio."


def test_keys_that_are_read_over_are_deprecated() -> None:
    for *parents, key in NOT_BUILT:
        part = SCHEMA
        for parent in parents:
            part = resolved(SCHEMA, part["properties"][parent])
        assert part["properties"][key]["deprecated"] is True


def test_without_plugins_it_is_sound_too() -> None:
    assert "enum" not in json_schema(PluginBlocks())["$defs"]["ModelConfig"]["properties"]["engine"]


def test_the_page_has_each_block_once_and_every_key() -> None:
    page = reference(SCHEMA)
    titles = re.findall(r"^#+ (.*)$", page, re.MULTILINE)
    assert titles == [
        "Configuration", "node", "api", "api.cors", "api.catalog", "api.keys[]",
        "mesh", "mesh.radio", "routing", "routing.acme", "health", "gpu", "activity", "telemetry",
        "models[]", "models[].kv_share", "models[].acme", "models[].acme.inner", "models[].more",
        "models[].more.inner", "Keys of parts that are not built",
    ]  # fmt: skip
    assert "| `binary` | text | required | Path of acme. Unset: none \\| at all. |" in page
    assert "| `mode` | `a` or `b` | `a` | Its own description. |" in page
    assert "| `lan` | block |  | The same as radio. |" in page
    assert "| `startup_timeout` | duration over 0 | unset |" in page
    assert "| `port` | whole number, 0 to 65535 | `8086` |" in page
    assert "| `network` | `none`, `lan`, `quiet`, `radio`, `seeds` or `tailnet` | unset |" in page
    assert "| `quiet` |" not in page

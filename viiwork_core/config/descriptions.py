"""The configuration described as a JSON schema, with the text under each key."""

from __future__ import annotations

import ast
import inspect
import json
import re
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from viiwork_core.config.load import NOT_BUILT
from viiwork_core.config.schema import Config

DIALECT = "https://json-schema.org/draft/2020-12/schema"

JsonSchema = dict[str, Any]


@dataclass(frozen=True, slots=True)
class PluginBlocks:
    """JSON schemas of plugins' blocks, made by `describe`, by the blocks' names."""

    engines: Mapping[str, JsonSchema] = field(default_factory=dict)
    policies: Mapping[str, JsonSchema] = field(default_factory=dict)
    discoveries: Mapping[str, JsonSchema] = field(default_factory=dict)
    listeners: Mapping[str, JsonSchema] = field(default_factory=dict)
    networks: Mapping[str, str] = field(default_factory=dict)
    """Further keys of discoveries' blocks: a network, and the name of the only discovery that serves it."""


def describe(model: type[BaseModel]) -> JsonSchema:
    """One block as a JSON schema. Its defaults are as they are written, its keys' docstrings their descriptions."""
    return model.model_json_schema(schema_generator=_Generator)


def json_schema(plugins: PluginBlocks) -> JsonSchema:
    """The whole configuration as a JSON schema, plugins' blocks included."""
    whole = {"$schema": DIALECT, **describe(Config), "title": "viiwork.yaml"}
    models, mesh, routing = (whole["$defs"][name] for name in ("ModelConfig", "MeshConfig", "RoutingConfig"))
    _place(whole, models, "engine", plugins.engines)
    _place(whole, routing, "policy", plugins.policies)
    for name, block in plugins.discoveries.items():
        mesh["properties"][name] = _lifted(whole, f"mesh.{name}", block)
    for network, name in plugins.networks.items():
        mesh["properties"][network] = {**mesh["properties"][name], "description": f"The same as {name}."}
    listeners = whole["$defs"]["ListenersConfig"]
    listeners["properties"] = {
        name: _lifted(whole, f"listeners.{name}", block) for name, block in plugins.listeners.items()
    }
    named = {"seeds", "lan", "tailnet", *plugins.discoveries, *plugins.networks}
    mesh["properties"]["network"]["anyOf"][0]["enum"] = ["none", *sorted(named)]
    for block in (models, mesh, routing, listeners):
        block["additionalProperties"] = False
    for *parents, key in NOT_BUILT:
        block = whole
        for parent in parents:
            block = resolved(whole, block["properties"][parent])
        block["properties"][key] = {"description": "Not built yet: ignored with a warning.", "deprecated": True}
    return whole


def resolved(whole: JsonSchema, part: JsonSchema) -> JsonSchema:
    """What a part of the whole schema refers to, or the part itself. A choice between it and null counts as it."""
    chosen = [one for one in part.get("anyOf", ()) if one != {"type": "null"}]
    inner = chosen[0] if len(chosen) == 1 else part
    found: JsonSchema = whole["$defs"][inner["$ref"].removeprefix("#/$defs/")] if "$ref" in inner else inner
    return found


def _place(whole: JsonSchema, block: JsonSchema, naming_key: str, plugins: Mapping[str, JsonSchema]) -> None:
    """Let `naming_key` name only plugins, and allow the block of a plugin only where it is named."""
    if not plugins:
        return
    properties = block["properties"]
    default = properties[naming_key].get("default")
    properties[naming_key]["enum"] = sorted(plugins)
    conditions = []
    for name, plugin in sorted(plugins.items()):
        properties[name] = _lifted(whole, f"{naming_key}.{name}", plugin)
        named = {"properties": {naming_key: {"const": name}}} | ({} if name == default else {"required": [naming_key]})
        block.setdefault("dependentSchemas", {})[name] = named
        if plugin.get("required"):
            conditions.append({"if": {**named, "required": [naming_key]}, "then": {"required": [name]}})
    if conditions:
        block["allOf"] = conditions


def _lifted(whole: JsonSchema, prefix: str, plugin: JsonSchema) -> JsonSchema:
    """A plugin's schema as part of the whole: its definitions move to the others, under names of their own."""
    moved = json.loads(json.dumps(plugin).replace('"#/$defs/', f'"#/$defs/{prefix}.'))
    for name, definition in moved.pop("$defs", {}).items():
        whole["$defs"][f"{prefix}.{name}"] = definition
    whole["$defs"][prefix] = moved
    # A block without keys of its own may be left empty, which YAML reads as null.
    return {"anyOf": [{"$ref": f"#/$defs/{prefix}"}, {"type": "null"}]}


class _Generator(GenerateJsonSchema):
    def field_title_should_be_set(self, schema: Any) -> bool:
        """Titles made from the keys would say nothing; those that are left are names of kinds of values."""
        del schema
        return False

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        made = super().model_schema(schema)
        cls: type[BaseModel] = schema["cls"]
        made.pop("title", None)
        if "description" in made:
            made["description"] = " ".join(made["description"].split())
        texts = _texts(cls)
        defaults = cls.model_construct().model_dump(mode="json", by_alias=True, warnings=False)
        for name, known in cls.model_fields.items():
            shown = made["properties"].get(known.alias or name, {})
            if name in texts:
                shown.setdefault("description", texts[name])
            if "default" in shown:
                shown["default"] = defaults[known.alias or name]
        return made


def _texts(cls: type[BaseModel]) -> dict[str, str]:
    """The docstrings under the fields of a class and of its bases, where their source is there."""
    found: dict[str, str] = {}
    for one in reversed(cls.__mro__):
        if issubclass(one, BaseModel) and one is not BaseModel:
            found |= _own_texts(one)
    return found


def _own_texts(cls: type[BaseModel]) -> dict[str, str]:
    try:
        (statement,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    except (OSError, TypeError, SyntaxError):
        return {}
    assert isinstance(statement, ast.ClassDef)
    found = {}
    for before, after in zip(statement.body, statement.body[1:], strict=False):
        if not (isinstance(before, ast.AnnAssign) and isinstance(before.target, ast.Name)):
            continue
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            # What code calls None is a key that is not there to those who write the file.
            text = " ".join(str(after.value.value).split())
            found[before.target.id] = re.sub(r"(^|[.] )None: ", r"\1Unset: ", text).replace("None: ", "unset: ")
    return found

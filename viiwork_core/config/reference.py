"""The reference of all keys as a page of documentation, made from the JSON schema."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

from viiwork_core.config.descriptions import JsonSchema, resolved
from viiwork_core.config.load import NOT_BUILT
from viiwork_core.config.problems import dotted

_INTRODUCTION = """\
# Configuration

`make docs` makes this page from the code.

One YAML file says what one machine does. `viiwork serve` reads what `--config` names, else
`/etc/viiwork/viiwork.yaml` for root, else `viiwork/viiwork.yaml` in `XDG_CONFIG_HOME` (`~/.config`), or the one in
`/etc` where there is none. Every key has a default except where it says "required", and an empty file is a node
without models. A key that is not on this page is an error, and so is one that appears twice; all errors are reported
at once, each with its line.

- Durations are a number and a unit: `250ms`, `20s`, `10m`, `1h30m`, a year at most.
- Sizes are bytes, or a number and a unit: `32MiB` (`KiB`, `MiB`, `GiB`).
- A plugin's own keys are in a block of its name: beside `models[].engine` that of the engine, beside
  `routing.policy` that of the policy, in `mesh` that of a discovery. The blocks below are those of the plugins that
  come with viiwork. `listeners` has no other keys: a block for each plugin that receives this node's events
  ([listeners](plugins/listeners.md)), under its name; it may be empty.
- No secret is in the file, only the name of the environment variable that holds it.

`viiwork config check [FILE]` tells what is wrong with a file, `viiwork config show [FILE]` what holds after all
defaults, with the command line of each backend, and `viiwork config schema` prints a JSON schema of the keys and of
all installed plugins' blocks for editors. Secrets are masked in what `show` prints.
"""

_UNBOUNDED = (1 << 31) - 1


def reference(schema: JsonSchema) -> str:
    """The page, as Markdown."""
    return "\n".join((_INTRODUCTION, *_Page(schema).sections(), *_not_built()))


def _not_built() -> Iterator[str]:
    yield "## Keys of parts that are not built\n"
    yield "These may be there, from a configuration of another viiwork. Each gives a warning and means nothing.\n"
    yield ", ".join(f"`{dotted(where)}`" for where in NOT_BUILT) + ".\n"


class _Page:
    def __init__(self, schema: JsonSchema) -> None:
        self._schema = schema
        self._told: list[JsonSchema] = []

    def sections(self) -> Iterator[str]:
        for name, part in self._schema["properties"].items():
            if not part.get("deprecated"):
                yield from self._section(name, part, 2)

    def _section(self, path: str, part: JsonSchema, depth: int) -> Iterator[str]:
        """The block at `path` with a table of its keys, then the blocks in it, each once."""
        block = resolved(self._schema, part)
        if block.get("type") == "array":
            path, block = f"{path}[]", resolved(self._schema, block["items"])
        if any(block is told for told in self._told) or not block.get("properties"):
            return
        self._told.append(block)
        yield f"{'#' * depth} {path}\n\n{block.get('description', '')}\n"
        yield "| key | value | default | |\n|---|---|---|---|"
        keys = {key: inner for key, inner in block["properties"].items() if self._is_worth_telling(inner)}
        yield from (self._row(key, inner, key in block.get("required", ())) for key, inner in keys.items())
        yield ""
        for key, inner in keys.items():
            if _is_block(self._one_of(inner)):
                yield from self._section(f"{path}.{key}", inner, depth + 1)

    def _one_of(self, part: JsonSchema) -> JsonSchema:
        """The schema at a key; of a list, that of its items."""
        block = resolved(self._schema, part)
        return resolved(self._schema, block["items"]) if block.get("type") == "array" else block

    def _is_worth_telling(self, part: JsonSchema) -> bool:
        block = resolved(self._schema, part)
        return not part.get("deprecated") and not (_is_block(block) and not block["properties"])

    def _row(self, key: str, part: JsonSchema, required: bool) -> str:
        block = resolved(self._schema, part)
        meaning = part.get("description") or (block.get("description", "") if _is_block(block) else "")
        cells = (f"`{key}`", self._kind(part), "required" if required else _default(part), meaning)
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    def _kind(self, part: JsonSchema) -> str:
        """A value's kind in words."""
        if "$ref" in part:
            return self._kind(resolved(self._schema, part))
        if "title" in part and not part.get("properties"):
            return str(part["title"]) if "enum" not in part else _choice(part["enum"])
        if "enum" in part or "const" in part:
            return _choice(part.get("enum") or [part["const"]])
        if "anyOf" in part:
            kinds = dict.fromkeys(self._kind(one) for one in part["anyOf"] if one != {"type": "null"})
            return " or ".join(kinds)
        if part.get("type") == "array":
            return f"list: {self._kind(part['items'])}"
        return _plain_kind(part)


def _is_block(part: JsonSchema) -> bool:
    return part.get("type") == "object" and "properties" in part


def _plain_kind(part: JsonSchema) -> str:
    kind = part.get("type")
    if kind in {"integer", "number"}:
        return ("whole number" if kind == "integer" else "number") + _range(part)
    if kind == "object":
        return "block" if "additionalProperties" not in part or "properties" in part else "names and texts"
    words = {"string": "path" if part.get("format") == "path" else "text", "boolean": "true or false"}
    return words.get(str(kind), "any")


def _range(part: JsonSchema) -> str:
    least, most, over = part.get("minimum"), part.get("maximum"), part.get("exclusiveMinimum")
    if over is not None:
        return f" over {over}"
    if most is None or most >= _UNBOUNDED:
        return "" if least is None else f" from {least}"
    return f" up to {most}" if least is None else f", {least} to {most}"


def _choice(values: list[Any]) -> str:
    words = [f"`{value}`" for value in values]
    return " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def _default(part: JsonSchema) -> str:
    if "default" not in part:
        return ""
    value = part["default"]
    if value is None:
        return "unset"
    if value == sys.executable:
        return "viiwork's Python"
    return f"`{value}`" if isinstance(value, str) and value else f"`{json.dumps(value)}`"

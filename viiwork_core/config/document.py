"""The YAML document: plain values, and the line of each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from viiwork_core.config.problems import Location, Problem, SourceMap, as_error
from viiwork_core.errors import ConfigError

_MAX_DEPTH = 32
_MAX_NODES = 50_000
"""Values in the document, aliases counted as often as they are used: a few lines can stand for billions."""

_PREFIX = "tag:yaml.org,2002:"
_CONVERTED = {_PREFIX + name for name in ("null", "bool", "int", "float")}
_TEXT = {_PREFIX + "str", _PREFIX + "timestamp"}
_MERGE = _PREFIX + "merge"


def parse(text: str, origin: str) -> tuple[dict[str, Any], SourceMap]:
    """The document's values and lines; an empty text is an empty mapping.

    Only text, numbers, true and false, null, lists and mappings with text keys exist; dates stay text. Raises
    ConfigError: one for a text that is not YAML, else a line for each problem. `origin` names the text.
    """
    try:
        loader = _Loader(text)
        root = loader.get_single_node()
    except yaml.YAMLError as error:
        raise _not_yaml(error, origin) from None
    builder = _Builder(loader, origin)
    data = {} if root is None else builder.build(root, (), 0)
    if builder.problems:
        raise as_error(builder.problems, SourceMap(builder.lines))
    if data is None or isinstance(data, dict):
        return data or {}, SourceMap(builder.lines)
    raise ConfigError(f"{origin}: must be a block of keys, such as node: and models:")


def dump(data: Mapping[str, Any]) -> str:
    """Plain data as YAML that `parse` reads as the same, keys in their order."""
    text: str = yaml.safe_dump(dict(data), sort_keys=False, allow_unicode=True, width=120)
    return text


def _not_yaml(error: yaml.YAMLError, origin: str) -> ConfigError:
    # The library's own text quotes the line, which may hold a secret.
    mark = getattr(error, "problem_mark", None)
    line = f" (line {mark.line + 1})" if mark is not None else ""
    problem = getattr(error, "problem", None) or "unreadable character"
    remedy = "indent with spaces, not with tabs" if "'\\t'" in problem else ""
    return ConfigError(f"{origin}{line}: is not YAML: {problem}", remedy=remedy)


class _Loader(yaml.SafeLoader):
    """A safe loader that refuses deep nesting before the interpreter's own limit does."""

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]  # the stubs leave it out
            raise yaml.MarkedYAMLError(problem=f"nested over {_MAX_DEPTH} deep", problem_mark=mark)
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


class _Builder:
    """Turns nodes into values, noting lines and problems on the way."""

    def __init__(self, loader: _Loader, origin: str) -> None:
        self._loader = loader
        self._origin = origin
        self._budget = _MAX_NODES
        self.lines: dict[Location, int] = {}
        self.problems: list[Problem] = []

    def build(self, node: yaml.Node, where: Location, depth: int) -> Any:
        self._budget -= 1
        # An alias may stand for a block around it, so depth is counted here once more.
        if self._budget < 0 or depth > _MAX_DEPTH:
            raise ConfigError(f"{self._origin}: its aliases expand to too much", remedy="write the values out")
        if isinstance(node, yaml.MappingNode) and node.tag == _PREFIX + "map":
            return self._mapping(node, where, depth + 1)
        if isinstance(node, yaml.SequenceNode) and node.tag == _PREFIX + "seq":
            return [self._entry(child, (*where, index), depth + 1) for index, child in enumerate(node.value)]
        return self._scalar(node, where)

    def _entry(self, node: yaml.Node, where: Location, depth: int) -> Any:
        self.lines[where] = node.start_mark.line + 1
        return self.build(node, where, depth)

    def _mapping(self, node: yaml.MappingNode, where: Location, depth: int) -> dict[str, Any]:
        merged: dict[str, Any] = {}
        own: dict[str, Any] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            if key.tag == _MERGE:
                merged = self._merged(value, where, depth) | merged
            elif not isinstance(key, yaml.ScalarNode) or key.tag not in _TEXT:
                self.problems.append(Problem(where, f"has a key on line {line} that is not text", "put it in quotes"))
            elif key.value in own:
                first = self.lines[(*where, key.value)]
                self.problems.append(Problem((*where, key.value), f"appears twice, on lines {first} and {line}"))
            else:
                self.lines[(*where, key.value)] = line
                own[key.value] = self.build(value, (*where, key.value), depth)
        return merged | own

    def _merged(self, node: yaml.Node, where: Location, depth: int) -> dict[str, Any]:
        """What `<<` brings in: one mapping, or several of which the first wins."""
        lines = dict(self.lines)
        values = self.build(node, where, depth)
        self.lines |= lines
        result: dict[str, Any] = {}
        for mapping in reversed(values) if isinstance(values, list) else [values]:
            if not isinstance(mapping, dict):
                self.problems.append(Problem(where, "merges something that is not a block of keys"))
            else:
                result |= mapping
        return result

    def _scalar(self, node: yaml.Node, where: Location) -> Any:
        if isinstance(node, yaml.ScalarNode) and node.tag in _TEXT:
            return node.value
        if isinstance(node, yaml.ScalarNode) and node.tag in _CONVERTED:
            try:
                return self._loader.construct_object(node)
            except (ValueError, KeyError, yaml.YAMLError):
                self.problems.append(Problem(where, "cannot be read as what it claims to be"))
                return None
        self.problems.append(Problem(where, "has a YAML tag that is not allowed here", "remove the tag"))
        return None

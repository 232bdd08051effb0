"""Problems in the configuration: where they are, what is wrong, what to do."""

from __future__ import annotations

import difflib
import re
import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from viiwork_core.errors import ConfigError

Location = tuple[str | int, ...]
"""A place in the document, e.g. ("models", 0, "name")."""


@dataclass(frozen=True, slots=True)
class SourceMap:
    """On which line of the file each key and list entry is. Empty for a configuration made in code."""

    lines: Mapping[Location, int] = field(default_factory=lambda: types.MappingProxyType({}))

    def line(self, where: Location) -> int | None:
        """The line of `where`, counted from 1, else of the nearest block around it; None: not from a file."""
        for length in range(len(where), 0, -1):
            if where[:length] in self.lines:
                return self.lines[where[:length]]
        return None


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong. Texts never repeat the value: it may be a secret that was put in the wrong place."""

    where: Location
    what: str
    remedy: str = ""

    def render(self, source: SourceMap) -> str:
        """E.g. "models[0].name (line 3): must not be empty; give it a name"."""
        line = source.line(self.where)
        place = dotted(self.where) + (f" (line {line})" if line is not None else "")
        return f"{place}: {self.what}" + (f"; {self.remedy}" if self.remedy else "")


def dotted(where: Location) -> str:
    """("models", 0, "name") as models[0].name."""
    text = ""
    for part in where:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def near_miss(name: str, known: Iterable[str]) -> str:
    """A question that offers the closest of `known`, or nothing."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"did you mean {close[0]}?" if close else ""


def as_error(problems: Iterable[Problem], source: SourceMap) -> ConfigError:
    """All problems as one error, a line each, in the order of the file."""
    ordered = sorted(problems, key=lambda problem: source.line(problem.where) or 0)
    return ConfigError("\n".join(dict.fromkeys(problem.render(source) for problem in ordered)))


def from_validation(error: ValidationError, root: Location, model: type[BaseModel]) -> list[Problem]:
    """What pydantic found in the block of type `model` at `root`."""
    return [_problem(details, root, model) for details in error.errors(include_url=False, include_input=False)]


_WORDS = {
    "missing": ("missing", "add it"),
    "string_type": ("must be text", "put it in quotes"),
    "model_type": ("must be a block of keys", ""),
    "model_attributes_type": ("must be a block of keys", ""),
    "mapping_type": ("must be a block of keys", ""),
    "dict_type": ("must be a block of keys", ""),
    "tuple_type": ("must be a list", ""),
    "bool_type": ("must be true or false", ""),
    "int_type": ("must be a whole number", ""),
    "is_instance_of": ("must be a path", "write it as text"),
}


def _problem(details: ErrorDetails, root: Location, model: type[BaseModel]) -> Problem:
    loc, kind, context = _place(details["loc"], model), details["type"], details.get("ctx", {})
    if kind == "extra_forbidden":
        return Problem(root + loc, "unknown key", near_miss(str(loc[-1]), _keys_beside(model, loc)))
    if kind == "misplaced":
        return Problem(root + loc + tuple(context["keys"]), str(context["what"]), str(context["remedy"]))
    if kind in _WORDS:
        return Problem(root + loc, *_WORDS[kind])
    if kind == "value_error":
        what, _, remedy = str(context["error"]).partition("; ")
        return Problem(root + loc, what, remedy)
    return Problem(root + loc, re.sub(r"^\w+ should ", "must ", details["msg"]))


def _place(loc: Location, model: type[BaseModel]) -> Location:
    """`loc` without what pydantic adds: a mark for keys, and tags that tell the members of a union apart."""
    found: list[str | int] = []
    annotation: Any = model
    for part in loc:
        block = next(_models_in(annotation), None)
        member = next((one for one in _models_in(annotation) if one.__name__ == part), None)
        if isinstance(part, int):
            found.append(part)
        elif (values := _values_of_mapping(annotation)) is not None:
            found += [] if part == "[key]" else [part]
            annotation = values
        elif member is not None and member is not annotation:
            annotation = member
        elif block is not None or annotation is Any:
            found.append(part)
            annotation = Any if block is None else _field(block, part)
    return tuple(found)


def _keys_beside(model: type[BaseModel], loc: Location) -> list[str]:
    """The keys that the block around `loc` knows."""
    annotation: Any = model
    for part in loc[:-1]:
        block = next(_models_in(annotation), None)
        if block is not None and isinstance(part, str):
            annotation = _field(block, part)
    inner = next(_models_in(annotation), None)
    return [] if inner is None else [known.alias or name for name, known in inner.model_fields.items()]


def _field(block: type[BaseModel], key: str) -> Any:
    """The annotation of a block's key; Any for a key that it does not know."""
    fields = block.model_fields.items()
    return next((known.annotation for name, known in fields if key in (known.alias, name)), Any)


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models_in(inner)


def _values_of_mapping(annotation: Any) -> Any:
    """What the values of a mapping are, also of one within a union; None: it is no mapping."""
    origin, args = get_origin(annotation) or annotation, get_args(annotation)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return args[1] if args else Any
    inner = (_values_of_mapping(arg) for arg in args)
    return next((values for values in inner if values is not None), None)

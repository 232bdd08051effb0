"""The public names of the plugin contract with their signatures, as text that a test compares."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator, Sequence
from enum import Enum
from types import ModuleType
from typing import Any

import viiwork_core
from viiwork_core import hookspecs
from viiwork_core.contracts.version import API_MAJOR, API_MINOR
from viiwork_core.testing import cache_kit, discovery_kit, engine_kit, listener_kit, policy_kit, pytest_kits

KITS = (engine_kit, cache_kit, discovery_kit, policy_kit, listener_kit, pytest_kits)
_DUNDERS = frozenset({"__init__", "__aenter__", "__aexit__"})


def listing() -> str:
    """One line for each name, and below a class for each of its members."""
    lines = [f"Plugin API {API_MAJOR}.{API_MINOR}", "", "viiwork_core", ""]
    lines += _names(viiwork_core, viiwork_core.__all__)
    lines += ["", "hooks", ""]
    lines += [_function(name, hook) for name, hook in hooks()]
    seen: set[int] = set()
    for kit in KITS:
        fresh = [name for name in kit.__all__ if id(getattr(kit, name)) not in seen]
        seen |= {id(getattr(kit, name)) for name in fresh}
        lines += ["", kit.__name__, "", *_names(kit, fresh)]
    return "\n".join(lines) + "\n"


def hooks() -> list[tuple[str, object]]:
    """The hook specs by name, in the order of the source."""
    return [(name, value) for name, value in vars(hookspecs).items() if name.startswith("viiwork_")]


def _names(module: ModuleType, names: Sequence[str]) -> Iterator[str]:
    for name in names:
        value = getattr(module, name)
        if isinstance(value, type) and hasattr(value, "__mro__"):
            yield from _class(value)
        elif inspect.isfunction(value):
            yield _function(name, value)
        else:
            yield f"{name}: {_described(value)}"


def _described(value: object) -> str:
    """Without an address in memory, and alike on every Python."""
    if isinstance(value, str | int):
        return repr(value)
    if isinstance(value, tuple):
        return f"tuple of {type(value[0]).__name__}" if value else "tuple"
    if type(value).__module__.startswith("pluggy"):
        return f"pluggy.{type(value).__name__}"
    if dataclasses.is_dataclass(value):
        return type(value).__name__
    return str(value).replace("pathlib._local", "pathlib")


def _class(cls: type) -> Iterator[str]:
    bases = ", ".join(base.__name__ for base in cls.__bases__ if base is not object and base.__name__[0] != "_")
    yield f"class {cls.__name__}({bases})" if bases else f"class {cls.__name__}"
    if issubclass(cls, Enum):
        yield from (f"    {member.name} = {member.value!r}" for member in cls)
        return
    yield from (f"    {line}" for line in (*_fields(cls), *_methods(cls)))


def _fields(cls: type) -> Iterator[str]:
    own = {one.name: one for one in dataclasses.fields(cls)} if dataclasses.is_dataclass(cls) else {}
    for name, annotation in inspect.get_annotations(cls).items():
        if name.startswith("_"):
            continue
        if name in own:
            yield f"{name}: {annotation}{_default(own[name])}"
        else:
            default = cls.__dict__.get(name, dataclasses.MISSING)
            yield f"{name}: {annotation}{_written(default)}"


def _default(field: dataclasses.Field[object]) -> str:
    if field.default_factory is not dataclasses.MISSING:
        return f" = {getattr(field.default_factory, '__name__', 'made')}()"
    return _written(field.default)


def _written(default: object) -> str:
    if default is dataclasses.MISSING:
        return ""
    if isinstance(default, Enum):
        return f" = {type(default).__name__}.{default.name}"
    return f" = {default.__name__}" if isinstance(default, type) else f" = {default!r}"


def _methods(cls: type) -> Iterator[str]:
    shown = _DUNDERS if not dataclasses.is_dataclass(cls) else frozenset()
    for name, value in cls.__dict__.items():
        if name.startswith("_") and name not in shown:
            continue
        if isinstance(value, property):
            assert value.fget is not None
            yield f"property {name} -> {inspect.signature(value.fget).return_annotation}"
        elif isinstance(value, classmethod | staticmethod):
            yield f"{type(value).__name__} {_function(name, value.__func__)}"
        elif inspect.isfunction(value) or hasattr(value, "__wrapped__"):
            yield _function(name, value)


class _Plain(str):
    """An annotation as it is written, without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _function(name: str, function: object) -> str:
    plain: Any = inspect.unwrap(function)  # type: ignore[arg-type]
    kind = "async def" if inspect.iscoroutinefunction(plain) else "def"
    if inspect.isasyncgenfunction(plain) and hasattr(function, "__wrapped__"):
        kind = "async with"
    signature = inspect.signature(plain)
    parameters = [one.replace(annotation=_plain(one.annotation)) for one in signature.parameters.values()]
    signature = signature.replace(parameters=parameters, return_annotation=_plain(signature.return_annotation))
    abstract = " (abstract)" if getattr(function, "__isabstractmethod__", False) else ""
    return f"{kind} {name}{signature}{abstract}"


def _plain(annotation: object) -> object:
    return _Plain(annotation) if isinstance(annotation, str) else annotation

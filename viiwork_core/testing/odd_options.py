"""Blocks of a configuration that a plugin should refuse in words, and never with an error of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import ValidationError

from viiwork_core.contracts.options import PluginOptions
from viiwork_core.testing.clauses import require

BAD_VALUES: tuple[Any, ...] = (None, -1, 0, 1e300, True, "", "\0", "no such thing", [], {}, ["x"], {"x": 1})


def odd_blocks(model: type[PluginOptions], good: PluginOptions) -> Iterator[tuple[str, dict[str, Any]]]:
    """What is odd about a block, and the block: good options, with one odd value in it."""
    block = good.model_dump()
    for name in model.model_fields:
        for value in BAD_VALUES:
            yield f"{name}: {value!r}", {**block, name: value}


def refuses_unknown_keys(model: type[PluginOptions], good: PluginOptions) -> None:
    """Raises AssertionError when a key that does not exist is accepted, or not named."""
    try:
        model.model_validate({**good.model_dump(), "no_such_key": 1})
    except ValidationError as error:
        require("no_such_key" in str(error), "the error does not name the unknown key")
    else:
        raise AssertionError("an unknown key is accepted")

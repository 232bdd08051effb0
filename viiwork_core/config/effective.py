"""The effective configuration: what holds after defaults were filled in, as plain data without secrets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from viiwork_core.config.blocks import OpenBlock
from viiwork_core.config.masks import Masks
from viiwork_core.config.problems import Location
from viiwork_core.config.schema import Config


def effective(
    config: Config, blocks: Mapping[Location, Mapping[str, Any]], meaningless: Iterable[Location], masks: Masks
) -> dict[str, Any]:
    """Every key with its value, durations and sizes as they are written: a configuration again, if nothing was masked.

    `blocks`: plugins' options as plain data, by the place of their block, such as ("models", 0, "acme"). `meaningless`:
    keys to leave out, since they would be refused there.
    """
    data = config.model_dump(mode="json")
    for (*parents, name), block in blocks.items():
        _at(data, parents)[name] = dict(block)
    for *parents, name in meaningless:
        _at(data, parents).pop(name, None)
    data["mesh"] = _open_block(data["mesh"], config.mesh, masks)
    data["routing"] = _open_block(data["routing"], config.routing, masks)
    data["listeners"] = masks.values(data["listeners"])
    data["models"] = [_model(model, masks) for model in data["models"]]
    return data


def _at(data: Any, parents: Iterable[str | int]) -> Any:
    for part in parents:
        data = data[part]
    return data


def _open_block(data: Mapping[str, Any], block: OpenBlock, masks: Masks) -> dict[str, Any]:
    """The core's own keys hold no secrets, only words about them."""
    own = type(block).model_fields
    return {key: value if key in own else masks.values(value) for key, value in data.items()}


def _model(model: Mapping[str, Any], masks: Masks) -> dict[str, Any]:
    how: dict[str, Callable[[Any], Any]] = {"env": masks.environment, "args": masks.arguments}
    return {key: how.get(key, masks.values)(value) for key, value in model.items()}

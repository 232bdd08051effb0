"""The cache of one conversation: one object of mlx_lm a layer."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.models.cache import QuantizedKVCache

Form = tuple[object, ...]
"""Class of a layer's cache, then type and shape of its arrays without the number of tokens."""


def form(layer: Any) -> Form:
    """Layers of equal form can stand for each other."""
    parts: Any = tree_flatten(layer.state)
    arrays = [part for _, part in parts if isinstance(part, mx.array)]
    return (type(layer), tuple((array.dtype, tuple(_width(array))) for array in arrays))


def _width(array: Any) -> list[int]:
    """Keys and values are [1, heads, tokens, width]."""
    shape = list(array.shape)
    return shape[:2] + shape[3:] if len(shape) == 4 else shape


def fits(layers: list[Any], forms: list[Form]) -> bool:
    """Whether the model can go on with these layers. Quantised ones cannot be compared: a model starts without."""
    if len(layers) != len(forms):
        return False
    return all(
        isinstance(layer, QuantizedKVCache) or form(layer) == like for layer, like in zip(layers, forms, strict=True)
    )


def cells(layers: list[Any]) -> int | None:
    """How many tokens the layers hold; None when they do not say or do not agree."""
    offsets = {int(layer.offset) for layer in layers if hasattr(layer, "offset")}
    return offsets.pop() if len(offsets) == 1 else None


def level(layers: list[Any], tokens: int) -> int:
    """Cut all layers to what each of them holds of the tokens, and return how many these are; 0 when that cannot be
    done. Layers that do not say how much they hold are taken to hold all."""
    offsets = [int(layer.offset) for layer in layers if hasattr(layer, "offset")]
    held = min([*offsets, tokens])
    if all(offset == held for offset in offsets):
        return held if held == tokens or len(offsets) == len(layers) else 0
    if len(offsets) < len(layers) or not all(layer.is_trimmable() for layer in layers):
        return 0
    for layer, offset in zip(layers, offsets, strict=True):
        layer.trim(offset - held)
    return held


def crop(layers: list[Any]) -> None:
    """Cut off the rows behind the last token: room for growth, or what another conversation wrote there."""
    for layer in layers:
        if hasattr(layer, "keys_and_values") and layer.keys is not None:
            layer.keys, layer.values = layer.keys_and_values()

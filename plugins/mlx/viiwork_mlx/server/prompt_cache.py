"""The conversations that are kept in memory."""

# mypy: allow-untyped-calls, allow-subclassing-any

from __future__ import annotations

from typing import Any

from mlx_lm.models.cache import LRUPromptCache, can_trim_prompt_cache, trim_prompt_cache

from viiwork_mlx.server.layers import level


class PromptCache(LRUPromptCache):
    """mlx_lm's, without two of its holes.

    A prompt that is kept as a whole leaves nothing to read, which ends the generation thread. And with a draft model
    the layers of a finished turn hold fewer tokens than the turn has, so that the next one would miss some.
    """

    def insert_cache(
        self, model: Any, tokens: list[int], prompt_cache: list[Any], *, cache_type: str = "assistant"
    ) -> None:
        """Keep what all layers hold. Layers that hold different numbers of tokens and cannot be cut are not kept."""
        held = level(prompt_cache, len(tokens))
        if held:
            super().insert_cache(model, tokens[:held], prompt_cache, cache_type=cache_type)

    def fetch_nearest_cache(self, model: Any, tokens: list[int]) -> tuple[list[Any] | None, list[int]]:
        """Copies of the layers of the longest kept prefix, always shorter than the prompt, and the tokens behind."""
        layers, rest = super().fetch_nearest_cache(model, tokens)
        if rest or layers is None:
            return layers, rest
        if len(tokens) > 1 and can_trim_prompt_cache(layers):
            trim_prompt_cache(layers, 1)
            return layers, tokens[-1:]
        return None, tokens

    def held(self, model: Any, tokens: list[int]) -> tuple[list[Any] | None, int]:
        """Copies of the layers of the longest kept prefix, which may be all of it, and its length. They share memory
        until written to."""
        layers, rest = super().fetch_nearest_cache(model, tokens)
        return layers, len(tokens) - len(rest)

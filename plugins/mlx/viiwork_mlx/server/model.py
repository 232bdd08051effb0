"""The one model that the server serves."""

# mypy: allow-untyped-calls, allow-subclassing-any

from __future__ import annotations

import argparse
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mlx_lm import stream_generate
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.server import ModelProvider

from viiwork_mlx.server.layers import Form, form


class ServedModel(ModelProvider):
    """mlx_lm's provider loads whatever a request names and drops what it had; this one keeps its model."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        super().__init__(arguments)
        self.ready = threading.Event()
        """Set once the model is loaded and has generated a token."""

        self.forms: list[Form] = []
        """What each layer's cache looks like."""

        self.context = context_of(Path(arguments.model))
        self.loaded: Callable[[], None] | None = None
        """Called by the thread that loads, once the model is in memory."""

        self.vocabulary = 0
        """How many tokens the model chooses from; known once it is ready."""

    def load_default(self) -> None:
        """Load the model and generate one token, so that kernels are compiled and a broken model shows now."""
        model, tokenizer = self.load()
        cache = make_prompt_cache(model)
        for token in stream_generate(model, tokenizer, "a", max_tokens=1, prompt_cache=cache):
            self.vocabulary = int(token.logprobs.shape[-1])
        self.forms = [form(layer) for layer in cache]
        if self.loaded is not None:
            self.loaded()
        self.ready.set()

    def load(self, *_: object) -> Any:
        return super().load("default_model", None, "default_model")

    def empty_cache(self) -> list[Any]:
        """Layers as mlx_lm makes them for a new conversation."""
        draft: Any = self.draft_model
        layers: list[Any] = make_prompt_cache(self.model)
        if draft is not None:
            layers += make_prompt_cache(draft)
        return layers


def context_of(folder: Path) -> int | None:
    """The model's longest context in tokens, as its config.json says; None when it does not."""
    try:
        config = json.loads((folder / "config.json").read_text("utf-8"))
    except (OSError, ValueError):
        return None  # loading it will say why
    for part in (config, config.get("text_config")):
        if isinstance(part, dict) and isinstance(length := part.get("max_position_embeddings"), int):
            return length
    return None

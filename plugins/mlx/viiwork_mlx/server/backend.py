"""What all requests of a backend share: its one model, the seats, the caches, and what /metrics tells of them."""

# mypy: allow-untyped-calls

from __future__ import annotations

import argparse
from collections.abc import Callable

import mlx.core as mx
from mlx_lm.server import get_system_fingerprint

from viiwork_mlx.server.generation import Generation, KvRefused
from viiwork_mlx.server.kv import KvFolder
from viiwork_mlx.server.model import ServedModel
from viiwork_mlx.server.prompt_cache import PromptCache
from viiwork_mlx.server.seats import Seats


class Backend:
    """One model. It begins to load at once; `model.ready` tells when it has."""

    def __init__(self, own: argparse.Namespace, theirs: argparse.Namespace, ended: Callable[[], None]) -> None:
        """`own`, `theirs`: the wrapper's arguments, and mlx_lm's. `ended` is called when nothing is generated any
        more."""
        self.model_name: str = own.model_name
        self.seats = Seats(own.parallel)
        self.model = ServedModel(theirs)
        self.fingerprint = get_system_fingerprint()
        limits = {} if theirs.prompt_cache_bytes is None else {"max_bytes": theirs.prompt_cache_bytes}
        prompt_cache = PromptCache(theirs.prompt_cache_size, **limits)
        contexts = [tokens for tokens in (own.context, self.model.context) if tokens is not None]
        self.context = min(contexts, default=None)
        self.generation = Generation(self.model, prompt_cache, self.context, ended=ended)
        self._kv = KvFolder(own.kv_dir, self.generation) if own.kv_dir is not None else None

    def gauges(self) -> dict[str, float]:
        """What is true now, for /metrics."""
        cache = self.generation.prompt_cache
        found: dict[str, float] = {"ready": int(self.model.ready.is_set()), "slots": self.seats.count}
        found |= {"busy": self.seats.busy, "waiting": self.seats.waiting}
        found |= {"prompt_cache_conversations": len(cache), "prompt_cache_bytes": cache.nbytes}
        found |= {"memory_active_bytes": mx.get_active_memory(), "memory_peak_bytes": mx.get_peak_memory()}
        found["memory_reusable_bytes"] = mx.get_cache_memory()
        if self.model.cli_args.prompt_cache_bytes is not None:
            found["prompt_cache_limit_bytes"] = cache.max_bytes
        return found

    def kv(self) -> KvFolder:
        """Raises KvRefused without --kv-dir, or while the model loads."""
        if self._kv is None:
            raise KvRefused(404, "the server was started without --kv-dir")
        if not self.model.ready.is_set():
            raise KvRefused(503, "the model is loading")
        return self._kv

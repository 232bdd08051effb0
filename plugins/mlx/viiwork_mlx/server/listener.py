"""The listening socket, and what its requests share."""

# mypy: allow-untyped-calls

from __future__ import annotations

import argparse
import socket
import socketserver
from http.server import ThreadingHTTPServer
from typing import Any

import mlx.core as mx
from mlx_lm.server import get_system_fingerprint

from viiwork_mlx.server.generation import Generation, KvRefused
from viiwork_mlx.server.handler import Handler
from viiwork_mlx.server.kv import KvFolder
from viiwork_mlx.server.model import ServedModel
from viiwork_mlx.server.prompt_cache import PromptCache
from viiwork_mlx.server.seats import Seats


class Listener(ThreadingHTTPServer):
    """One server with one model. The socket listens first, then the model loads: /health says how far it is."""

    request_queue_size = 128

    def __init__(self, address: tuple[str, int], own: argparse.Namespace, theirs: argparse.Namespace) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, Handler)
        self.model_name: str = own.model_name
        self.seats = Seats(own.parallel)
        self.model = ServedModel(theirs)
        self.fingerprint = get_system_fingerprint()
        limits = {} if theirs.prompt_cache_bytes is None else {"max_bytes": theirs.prompt_cache_bytes}
        prompt_cache = PromptCache(theirs.prompt_cache_size, **limits)
        contexts = [tokens for tokens in (own.context, self.model.context) if tokens is not None]
        self.context = min(contexts, default=None)
        self.generation = Generation(self.model, prompt_cache, self.context, ended=self.shutdown)
        self._kv = KvFolder(own.kv_dir, self.generation) if own.kv_dir is not None else None

    def server_bind(self) -> None:
        # http.server's looks the host's name up in the DNS, which may take seconds.
        socketserver.TCPServer.server_bind(self)

    def finish_request(self, request: Any, client_address: Any) -> None:
        Handler(self.generation, request, client_address, self, system_fingerprint=self.fingerprint)

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

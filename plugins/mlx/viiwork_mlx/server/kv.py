"""Conversations to files and back: only token ids and the KV cache, never text."""

# mypy: allow-untyped-calls

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import QuantizedKVCache, load_prompt_cache, save_prompt_cache

from viiwork_core import CacheRefused
from viiwork_mlx.cache_file import FORMAT, Header, read_header
from viiwork_mlx.server.generation import Generation, KvRefused
from viiwork_mlx.server.layers import cells, crop, fits
from viiwork_mlx.server.seats import Client

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}")
PART = ".part.safetensors"  # MLX goes by this ending, and the names that are asked for need not have it


class KvFolder:
    """The folder of cache files."""

    def __init__(self, folder: Path, generation: Generation) -> None:
        self._folder = folder
        self._generation = generation
        for left in folder.glob(f".*{PART}"):  # by a process that was killed
            left.unlink()

    def save(self, session: str, name: str, client: Client) -> dict[str, Any]:
        """Write the longest cached prefix of the session's last turn to the file, which appears when it is whole."""
        path = self._path(name)
        with self._part(name) as part:
            self._generation.run(lambda: self._write(session, part), client)
            header = _checked(part)
            _sync(part)
            part.replace(path)
        _sync(self._folder)
        return {"filename": name, "tokens": len(header.ids), "bytes": header.size}

    def restore(self, session: str, name: str, client: Client) -> dict[str, Any]:
        """Put the file's conversation into the prompt cache, as the session's last turn."""
        path = self._path(name)
        with self._part(name) as part:
            try:
                os.link(path, part)
            except FileNotFoundError as error:
                raise KvRefused(404, f"there is no cache file {name}") from error
            header = _checked(part)
            self._generation.run(lambda: self._read(part, header), client)
        self._generation.sessions.remember(session, header.ids)
        return {"filename": name, "tokens": len(header.ids), "bytes": header.size}

    def holds(self, session: str, client: Client) -> dict[str, object]:
        """How many tokens of the session's last turn the prompt cache still has."""
        ids = self._generation.sessions.ids(session)
        return {"session": session, "tokens": self._generation.run(lambda: self._fetch(ids)[1], client) if ids else 0}

    def _path(self, name: str) -> Path:
        if not NAME.fullmatch(name):
            raise KvRefused(400, "filename must be 1 to 200 of A-Z a-z 0-9 . _ - and not begin with . or -")
        return self._folder / name

    @contextmanager
    def _part(self, name: str) -> Iterator[Path]:
        part = self._folder / f".{name[:100]}.{secrets.token_hex(4)}{PART}"
        try:
            yield part
        finally:
            part.unlink(missing_ok=True)

    def sessions(self, client: Client) -> dict[str, object]:
        """Every session of which the prompt cache still has something, the one silent longest first."""
        known = self._generation.sessions.all()
        held = self._generation.run(lambda: {key: self._fetch(ids)[1] for key, ids in known.items()}, client)
        return {"sessions": [{"session": key, "tokens": tokens} for key, tokens in held.items() if tokens]}

    def _fetch(self, ids: list[int]) -> tuple[list[Any] | None, int]:
        """Copies of the layers of the longest cached prefix, and its length."""
        found: tuple[list[Any] | None, int] = self._generation.prompt_cache.held(self._generation.served.model_key, ids)
        return found

    def _write(self, session: str, part: Path) -> None:
        ids = self._generation.sessions.ids(session)
        layers, held = self._fetch(ids) if ids else (None, 0)
        if layers is None or not held:
            raise KvRefused(404, "nothing of this session is in the prompt cache")
        crop(layers)
        if cells(layers) != held:
            raise KvRefused(409, f"this model's cache cannot be saved: {cells(layers)} cells for {held} tokens")
        try:
            save_prompt_cache(str(part), layers, {"format": FORMAT, "tokens": json.dumps(ids[:held])})
        except (RuntimeError, ValueError) as error:  # a full disk; a state that is not arrays
            raise KvRefused(507, f"MLX could not write the cache file: {error}") from error

    def _read(self, part: Path, header: Header) -> None:
        model = self._generation.served
        limit = self._generation.prompt_cache.max_bytes
        if header.size > limit:  # before anything makes room for it
            raise KvRefused(507, f"the file has {header.size} bytes, the prompt cache {limit}; see prompt_cache_bytes")
        if list(header.classes) != self._classes(header):
            raise KvRefused(422, "the cache file is of a model with other layers")
        try:
            layers = load_prompt_cache(str(part))
            mx.eval([layer.state for layer in layers])  # else the file is read when the next turn needs it
        except (RuntimeError, ValueError, TypeError, LookupError) as error:
            raise KvRefused(422, f"MLX could not read the cache file: {error}") from error
        if not fits(layers[: len(model.forms)], model.forms):
            raise KvRefused(422, "the cache file is of a model with layers of other shapes")
        ids = list(header.ids)
        if not ids or cells(layers) != len(ids):
            raise KvRefused(422, f"the cache file has {cells(layers)} cells for {len(ids)} tokens")
        self._generation.prompt_cache.insert_cache(model.model_key, ids, layers)
        if self._fetch(ids)[1] != len(ids):
            raise KvRefused(507, "the prompt cache has no room for it; see prompt_cache_bytes")

    def _classes(self, header: Header) -> list[str]:
        """The classes that the file's layers may have: mlx_lm would look up any name that it finds there."""
        own = [type(layer).__name__ for layer in self._generation.served.empty_cache()]
        if self._generation.served.cli_args.kv_bits is None or len(own) != len(header.classes):
            return own
        pairs = zip(header.classes, own, strict=True)
        return [said if said == QuantizedKVCache.__name__ else name for said, name in pairs]


def _checked(part: Path) -> Header:
    try:
        return read_header(part)
    except CacheRefused as error:
        raise KvRefused(422, error.message) from error


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

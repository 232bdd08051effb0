"""The fake engine's slots: who gets which, and saving and restoring them, by llama-server's rules."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from viiwork_core.testing import fake_model
from viiwork_core.testing.fake_http import Request
from viiwork_core.testing.fake_model import Slot
from viiwork_core.testing.fake_reply import Task

SIMILAR = 0.1
"""A request goes to the slot that holds more than this share of its prompt, as llama-server's default has it."""


class Refusal(Exception):
    """An error answer in llama-server's shape."""

    def __init__(self, status: int, kind: str, message: str, **more: int) -> None:
        super().__init__(message)
        self.status = status
        self.body = {"error": {"code": status, "message": message, "type": kind, **more}}


def invalid(message: str) -> Refusal:
    return Refusal(400, "invalid_request_error", message)


def json_object(content: bytes) -> dict[str, Any]:
    try:
        body = json.loads(content)
    except ValueError as error:
        raise Refusal(500, "server_error", f"parse error: {error}") from error
    if not isinstance(body, dict):
        raise invalid("the body must be an object")
    return body


class SlotTable:
    """All slots of one fake engine."""

    def __init__(self, count: int, *, context: int, folder: Path | None, wedged: int | None) -> None:
        self.slots = [Slot(number) for number in range(count)]
        self.context = context
        self._folder, self._wedged = folder, wedged
        self._uses = itertools.count(1)
        self._freed = asyncio.Event()

    @asynccontextmanager
    async def claimed(self, task: Task) -> AsyncIterator[Slot]:
        """Wait for a slot by llama-server's choice, or for the pinned one, and hold it."""
        while (slot := self._choose(task)) is None:
            await self._freed.wait()
        slot.busy, slot.last_used = True, next(self._uses)
        if slot.id == self._wedged:
            await asyncio.Event().wait()  # busy for ever, also after the client has left
        try:
            yield slot
        finally:
            slot.busy = False
            self._freed.set()
            self._freed = asyncio.Event()

    def _choose(self, task: Task) -> Slot | None:
        if task.pin is not None:
            return None if self.slots[task.pin].busy else self.slots[task.pin]
        free = [slot for slot in self.slots if not slot.busy]
        if not free:
            return None
        best = max(free, key=lambda slot: slot.common(task.ids))
        if best.common(task.ids) > SIMILAR * len(task.ids):
            return best
        return min(free, key=lambda slot: (slot.last_used, -slot.id))

    def act(self, number: str, request: Request) -> dict[str, Any]:
        if not number.isdigit():
            raise invalid("Invalid slot ID")
        slot = self.slots[int(number) % len(self.slots)]
        if slot.busy:
            # llama-server puts this off, sometimes for good. A test should learn of it at once.
            raise invalid("the slot is processing a request")
        match request.query.get("action"):
            case "save":
                return self._save(int(number), slot, json_object(request.body))
            case "restore":
                return self._restore(int(number), slot, json_object(request.body))
            case "erase":
                erased, slot.rows = len(slot.rows), []
                return {"id_slot": int(number), "n_erased": erased}
            case _:
                raise invalid("Invalid action")

    def _save(self, number: int, slot: Slot, body: dict[str, Any]) -> dict[str, Any]:
        """Unlike llama-server, an empty slot, and a slot that another session has taken, are refused."""
        path, began = self._cache_path(body), time.monotonic()
        if not slot.rows:
            raise invalid("the slot holds nothing")
        if body.get("session", slot.session) != slot.session:
            raise invalid("the slot holds another session")
        written = fake_model.write_cache(slot, path)
        timings = {"save_ms": (time.monotonic() - began) * 1000}
        return {
            "id_slot": number,
            "filename": path.name,
            "n_saved": len(slot.rows),
            "n_written": written,
            "timings": timings,
        }

    def _restore(self, number: int, slot: Slot, body: dict[str, Any]) -> dict[str, Any]:
        path, began = self._cache_path(body), time.monotonic()
        slot.rows = []  # as in llama-server, a failed restore leaves an empty slot
        try:
            slot.rows, slot.session = fake_model.read_cache(path), body.get("session")
        except (OSError, fake_model.BadCacheFile) as error:
            raise invalid(f"Unable to restore slot: {error}") from error
        timings = {"restore_ms": (time.monotonic() - began) * 1000}
        read = path.stat().st_size
        return {
            "id_slot": number,
            "filename": path.name,
            "n_restored": len(slot.rows),
            "n_read": read,
            "timings": timings,
        }

    def _cache_path(self, body: dict[str, Any]) -> Path:
        if self._folder is None:
            raise Refusal(501, "not_supported_error", "start with --slot-save-path to save and restore slots")
        name = body.get("filename")
        if not isinstance(name, str) or not name or "/" in name or name.startswith("."):
            raise invalid("Invalid filename")
        return self._folder / name

    def describe(self) -> list[dict[str, Any]]:
        """What GET /slots shows. As in llama-server, a restore alone does not show."""
        return [self._describe(slot) for slot in self.slots]

    def _describe(self, slot: Slot) -> dict[str, Any]:
        shown = {"id": slot.id, "n_ctx": self.context, "speculative": False, "is_processing": slot.busy}
        if slot.task is None:
            return shown
        token = {
            "has_next_token": slot.busy,
            "has_new_line": False,
            "n_remain": slot.remaining,
            "n_decoded": slot.decoded,
        }
        return {
            **shown,
            "id_task": slot.task,
            "n_prompt_tokens": len(slot.rows),
            "n_prompt_tokens_processed": slot.prompt_tokens - slot.cached_tokens,
            "n_prompt_tokens_cache": slot.cached_tokens,
            "params": {"stream": False, "n_predict": slot.decoded + slot.remaining},
            "next_token": [token],
        }

"""A Strata server's control calls. The one place where its HTTP answers and failures become values and errors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Self

import anyio
import httpx

from viiwork_core import Address, CacheUnsupported, EngineRefused, EngineUnreachable

_SMALL = 64 * 1024
_LARGE = 256 * 1024
"""Bytes of an answer; a longer one is not Strata's. /status may carry the end of a long answer, /slots many slots."""

_UNSUPPORTED = "give Strata one slot on one GPU and session files on, use a newer Strata, or remove kv_share"
"""Session files are off, or the engine runs a batch or several stages."""

_STATUS_S = 0.4
"""What /status may take: its figures are an extra, and the load must not be late for them."""


class StrataServer:
    """A client without kept connections: Strata speaks HTTP/1.0. `async with` opens and closes it."""

    _http: httpx.AsyncClient

    async def __aenter__(self) -> Self:
        # A save takes as long as the transfer and waits its turn behind requests: the caller's deadline ends it, not
        # a read timeout.
        timeout = httpx.Timeout(None, connect=5.0)
        limits = httpx.Limits(max_keepalive_connections=0)
        self._http = httpx.AsyncClient(timeout=timeout, limits=limits, trust_env=False)
        await self._http.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.__aexit__()

    async def health(self, address: Address) -> object:
        """The body of GET /health; None when it is not JSON or the status is not 200. Raises EngineUnreachable."""
        status, data = await self._get(address, "/health", _SMALL)
        return _json(data) if status == httpx.codes.OK else None

    async def slots(self, address: Address) -> list[Mapping[str, object]]:
        """The entries of GET /slots, at least one. Raises EngineUnreachable, EngineRefused."""
        status, data = await self._get(address, "/slots", _LARGE)
        if status != httpx.codes.OK:
            raise _refusal("GET /slots", status, data)
        entries = _json(data)
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise EngineRefused("Strata's /slots is not a list of objects")
        if not entries:
            raise EngineRefused("Strata lists no slots: its engine process is not running")
        return entries

    async def status(self, address: Address) -> Mapping[str, object]:
        """What GET /status says, as far as it comes in 400 ms; else nothing. It holds private text: the end of the last
        answer. Raises nothing."""
        with anyio.move_on_after(_STATUS_S), suppress(EngineUnreachable):
            status, data = await self._get(address, "/status", _LARGE)
            body = _json(data) if status == httpx.codes.OK else None
            return body if isinstance(body, dict) else {}
        return {}

    async def version(self, address: Address) -> str | None:
        """The engine's version string from GET /v1/status; None: it does not tell. Raises EngineUnreachable."""
        status, data = await self._get(address, "/v1/status", _LARGE)
        body = _json(data) if status == httpx.codes.OK else None
        version = body.get("engine") if isinstance(body, dict) else None
        return version if isinstance(version, str) and version else None

    async def session(self, address: Address, action: str, name: str) -> Mapping[str, object]:
        """Save or restore the live conversation as file `name`; the answer's body.

        Raises EngineUnreachable, or EngineRefused with Strata's status, kind and words; CacheUnsupported for 501.
        """
        path = f"/slots/0?action={action}"
        status, data = await self._send("POST", address, path, _SMALL, {"filename": name})
        if status == httpx.codes.NOT_IMPLEMENTED:
            raise CacheUnsupported(_refusal(action, status, data).message, remedy=_UNSUPPORTED)
        if status != httpx.codes.OK:
            raise _refusal(action, status, data)
        body = _json(data)
        if not isinstance(body, dict):
            raise EngineRefused(f"Strata answered {action} with something other than a JSON object")
        return body

    async def _get(self, address: Address, path: str, limit: int) -> tuple[int, bytes]:
        return await self._send("GET", address, path, limit)

    async def _send(
        self, method: str, address: Address, path: str, limit: int, body: object = None
    ) -> tuple[int, bytes]:
        """Status and body; a body over `limit` is dropped: it is not Strata's. Raises EngineUnreachable."""
        data = b""
        try:
            async with self._http.stream(method, address.url + path, json=body) as answer:
                async for chunk in answer.aiter_bytes():
                    data += chunk
                    if len(data) > limit:
                        return answer.status_code, data[:0]
                return answer.status_code, data
        except httpx.HTTPError as error:
            reason = str(error) or type(error).__name__
            raise EngineUnreachable(f"Strata at {address.url} did not answer {method} {path}: {reason}") from error


def count(body: Mapping[str, object], key: str) -> int:
    """A count out of an answer. Raises EngineRefused when it is missing, not a whole number, or negative."""
    value = body.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise EngineRefused(f"Strata's answer has no usable {key}: {value!r}")
    return value


def _json(data: bytes) -> object:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def _refusal(what: str, status: int, data: bytes) -> EngineRefused:
    """{"error": {"type", "message", "code", "kind"}}, where `kind` is only in the engine's own refusals."""
    body = _json(data)
    error = body.get("error") if isinstance(body, dict) else None
    if not isinstance(error, dict):
        return EngineRefused(f"Strata answered {what} with status {status}")
    kind = f" ({error['kind']})" if "kind" in error else ""
    return EngineRefused(f"Strata answered {what} with {status}{kind}: {error.get('message')}")

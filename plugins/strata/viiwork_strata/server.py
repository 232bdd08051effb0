"""A Strata server's control calls. The one place where its HTTP answers and failures become values and errors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Self

import httpx

from viiwork_core import Address, EngineRefused, EngineUnreachable


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
        answer = await self._send("GET", address, "/health")
        return _body(answer) if answer.status_code == httpx.codes.OK else None

    async def slots(self, address: Address) -> list[Mapping[str, object]]:
        """The entries of GET /slots, at least one. Raises EngineUnreachable, EngineRefused."""
        answer = await self._send("GET", address, "/slots")
        if answer.status_code != httpx.codes.OK:
            raise _refusal("GET /slots", answer)
        entries = _body(answer)
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise EngineRefused("Strata's /slots is not a list of objects")
        if not entries:
            raise EngineRefused("Strata lists no slots: its engine process is not running")
        return entries

    async def version(self, address: Address) -> str | None:
        """The engine's version string from GET /v1/status; None: it does not tell. Raises EngineUnreachable."""
        answer = await self._send("GET", address, "/v1/status")
        body = _body(answer) if answer.status_code == httpx.codes.OK else None
        version = body.get("engine") if isinstance(body, dict) else None
        return version if isinstance(version, str) and version else None

    async def session(self, address: Address, action: str, name: str) -> Mapping[str, object]:
        """Save or restore the live conversation as file `name`; the answer's body.

        Raises EngineUnreachable, or EngineRefused with Strata's status, kind and words.
        """
        answer = await self._send("POST", address, f"/slots/0?action={action}", {"filename": name})
        body = _body(answer)
        if answer.status_code != httpx.codes.OK:
            raise _refusal(action, answer)
        if not isinstance(body, dict):
            raise EngineRefused(f"Strata answered {action} with something other than a JSON object")
        return body

    async def _send(self, method: str, address: Address, path: str, body: object = None) -> httpx.Response:
        try:
            return await self._http.request(method, address.url + path, json=body)
        except httpx.HTTPError as error:
            reason = str(error) or type(error).__name__
            raise EngineUnreachable(f"Strata at {address.url} did not answer {method} {path}: {reason}") from error


def count(body: Mapping[str, object], key: str) -> int:
    """A count out of an answer. Raises EngineRefused when it is missing, not a whole number, or negative."""
    value = body.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise EngineRefused(f"Strata's answer has no usable {key}: {value!r}")
    return value


def _body(answer: httpx.Response) -> object:
    try:
        return json.loads(answer.content)
    except ValueError:
        return None


def _refusal(what: str, answer: httpx.Response) -> EngineRefused:
    """{"error": {"type", "message", "code", "kind"}}, where `kind` is only in the engine's own refusals."""
    body = _body(answer)
    error = body.get("error") if isinstance(body, dict) else None
    if not isinstance(error, dict):
        return EngineRefused(f"Strata answered {what} with status {answer.status_code}")
    kind = f" ({error['kind']})" if "kind" in error else ""
    return EngineRefused(f"Strata answered {what} with {answer.status_code}{kind}: {error.get('message')}")

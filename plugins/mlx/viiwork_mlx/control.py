"""The control calls of a running MLX server. The one place where its answers and failures become values and errors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Self

import httpx

from viiwork_core import Address, EngineRefused, EngineUnreachable


class MlxControl:
    """A client without kept connections: the server speaks HTTP/1.0. `async with` opens and closes it."""

    def __init__(self) -> None:
        # A save waits its turn behind the generation and takes as long as the disk: the caller's deadline ends it, and
        # closing the connection then takes it back.
        timeout = httpx.Timeout(None, connect=5.0)
        limits = httpx.Limits(max_keepalive_connections=0)
        self._http = httpx.AsyncClient(timeout=timeout, limits=limits, trust_env=False)

    async def __aenter__(self) -> Self:
        await self._http.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.__aexit__()

    async def health(self, address: Address) -> tuple[int, object]:
        """Status and body of GET /health; the body is None when it is not JSON. Raises EngineUnreachable."""
        answer = await self._send("GET", address, "/health")
        return answer.status_code, _body(answer)

    async def get(self, address: Address, path: str) -> Mapping[str, object]:
        """The JSON object at `path`. Raises EngineUnreachable, EngineRefused."""
        return _object(f"GET {path}", await self._send("GET", address, path))

    async def post(self, address: Address, path: str, body: Mapping[str, str]) -> Mapping[str, object]:
        """The JSON object that answers `body`. Raises EngineUnreachable, EngineRefused."""
        return _object(f"POST {path}", await self._send("POST", address, path, body))

    async def _send(
        self, method: str, address: Address, path: str, body: Mapping[str, str] | None = None
    ) -> httpx.Response:
        try:
            return await self._http.request(method, address.url + path, json=body)
        except httpx.HTTPError as error:
            reason = str(error) or type(error).__name__
            raise EngineUnreachable(f"MLX at {address.url} did not answer {method} {path}: {reason}") from error


def count(body: Mapping[str, object], key: str) -> int:
    """A count out of an answer. Raises EngineRefused when it is missing, not a whole number, or negative."""
    value = body.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise EngineRefused(f"the MLX server's answer has no usable {key}: {value!r}")
    return value


def _body(answer: httpx.Response) -> object:
    try:
        return json.loads(answer.content)
    except ValueError:
        return None


def _object(what: str, answer: httpx.Response) -> Mapping[str, object]:
    body = _body(answer)
    if answer.status_code == httpx.codes.OK and isinstance(body, dict):
        return body
    words = body.get("error") if isinstance(body, dict) else None
    raise EngineRefused(f"the MLX server answered {what} with {answer.status_code}: {words or 'not a JSON object'}")

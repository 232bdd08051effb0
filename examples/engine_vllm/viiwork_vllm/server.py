"""What a running vLLM is asked. The one place where its answers and failures become values and errors."""

from __future__ import annotations

import json
import re
from typing import Self

import httpx
from viiwork_core import Address, EngineRefused, EngineUnreachable

from viiwork_vllm.metrics import Metrics, read_metrics

REPLY_LIMIT = 8 << 20
"""Bytes of a reply that are read at most; /metrics have some 100 KiB."""


class VllmServer:
    """A client. `async with` opens and closes it."""

    _http: httpx.AsyncClient

    async def __aenter__(self) -> Self:
        # Each call is made under a deadline of the core's.
        self._http = httpx.AsyncClient(timeout=httpx.Timeout(None, connect=5.0), trust_env=False)
        await self._http.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.__aexit__()

    async def health(self, address: Address) -> int:
        """The status of GET /health; it has no body. Raises EngineUnreachable."""
        return (await self._get(address, "/health"))[0]

    async def version(self, address: Address) -> str | None:
        """What GET /version says, cut at 40 characters; None: nothing. Raises EngineUnreachable."""
        status, data = await self._get(address, "/version")
        body = _json(data) if status == httpx.codes.OK else None
        version = body.get("version") if isinstance(body, dict) else None
        found = re.match(r"[A-Za-z0-9.+_-]{1,40}", version) if isinstance(version, str) else None
        return found[0] if found else None

    async def context(self, address: Address, model: str) -> int | None:
        """The most tokens of a request, as GET /v1/models says; None: it does not.

        Raises EngineUnreachable, and EngineRefused when the server does not serve `model`.
        """
        status, data = await self._get(address, "/v1/models")
        match _json(data) if status == httpx.codes.OK else None:
            case {"data": [*cards]}:
                found = [card for card in cards if isinstance(card, dict) and card.get("id") == model]
            case _:
                found = []
        if not found:
            raise EngineRefused(f"vLLM's /v1/models, status {status}, does not list {model}")
        length = found[0].get("max_model_len")
        return length if type(length) is int and length > 0 else None

    async def metrics(self, address: Address) -> Metrics:
        """What GET /metrics says. Raises EngineUnreachable, EngineRefused."""
        status, data = await self._get(address, "/metrics")
        if status != httpx.codes.OK:
            raise EngineRefused(f"vLLM answered GET /metrics with status {status}")
        return read_metrics(data.decode(errors="replace"))

    async def _get(self, address: Address, path: str) -> tuple[int, bytes]:
        """Status and body; one over the limit is dropped. Raises EngineUnreachable."""
        data = b""
        try:
            async with self._http.stream("GET", address.url + path) as answer:
                async for chunk in answer.aiter_bytes():
                    data += chunk
                    if len(data) > REPLY_LIMIT:
                        return answer.status_code, b""  # what is that long is not vLLM's
                return answer.status_code, data
        except httpx.HTTPError as error:
            reason = str(error) or type(error).__name__
            raise EngineUnreachable(f"vLLM at {address.url} did not answer GET {path}: {reason}") from error


def _json(data: bytes) -> object:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None

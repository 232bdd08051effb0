"""A running llama-server: the few questions that viiwork asks it, and their answers, checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import httpx
import msgspec

from viiwork_core import Address, EngineRefused, EngineUnreachable

REPLY_LIMIT = 4 << 20
"""Bytes of a reply that are read at most."""

ANSWER_TIMEOUT = httpx.Timeout(10.0, connect=5.0)
SLOT_TIMEOUT = httpx.Timeout(120.0, connect=5.0)
"""Saving or restoring takes about a second a gigabyte, and an action on a slot that became busy may never be
answered at all."""

Count = Annotated[int, msgspec.Meta(ge=0)]
Size = Annotated[int, msgspec.Meta(ge=1)]
T = TypeVar("T")


class Slot(msgspec.Struct):
    """One entry of GET /slots."""

    id: Count
    n_ctx: Size
    is_processing: bool
    n_prompt_tokens: Count | None = None
    """Tokens in the slot's cache. Missing until the slot has served its first request, also after a restore."""


class SlotAction(msgspec.Struct):
    """The answer to a save or a restore."""

    id_slot: Count
    n_saved: Count | None = None
    n_restored: Count | None = None


class _Template(msgspec.Struct):
    prompt: str


class _Tokens(msgspec.Struct):
    tokens: list[Count]


class _Detail(msgspec.Struct):
    message: str


class _Failure(msgspec.Struct):
    error: _Detail


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer as it came, cut at REPLY_LIMIT."""

    status: int
    body: bytes
    whole: bool = True

    @property
    def words(self) -> str:
        """The engine's message, or the status when there is none."""
        try:
            return msgspec.json.decode(self.body, type=_Failure).error.message[:500]
        except msgspec.DecodeError:
            return f"HTTP {self.status}"


class LlamaServer:
    """The HTTP client. Every method raises EngineUnreachable when the connection fails or times out, and all but
    `health` raise EngineRefused for an answer that is not what was asked for."""

    def __init__(self) -> None:
        self._client: httpx.AsyncClient | None = None

    def open(self) -> None:
        # No kept connections: another process may listen on the port by the next question.
        limits = httpx.Limits(max_keepalive_connections=0)
        self._client = httpx.AsyncClient(trust_env=False, limits=limits, headers={"accept-encoding": "identity"})

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    async def health(self, address: Address) -> Reply:
        return await self._ask("GET", f"{address.url}/health")

    async def slots(self, address: Address) -> list[Slot]:
        """All slots, at least one, each with an id of its own."""
        slots = _decoded(await self._ask("GET", f"{address.url}/slots"), list[Slot])
        if not slots or len({slot.id for slot in slots}) != len(slots):
            raise EngineRefused("llama-server's /slots names no slot, or one twice")
        return slots

    async def act(self, address: Address, slot: int, action: str, name: str) -> SlotAction:
        """Save or restore one slot. The caller has checked that the slot exists and is idle."""
        url = f"{address.url}/slots/{slot}?action={action}"
        reply = await self._ask("POST", url, msgspec.json.encode({"filename": name}), SLOT_TIMEOUT)
        return _decoded(reply, SlotAction)

    async def prompt(self, address: Address, chat: bytes) -> str:
        """The text that a chat request becomes. `chat` is the request's own body."""
        return _decoded(await self._ask("POST", f"{address.url}/apply-template", chat), _Template).prompt

    async def tokenize(self, address: Address, text: str) -> list[int]:
        """The ids of a prompt, as the server makes them for a request: special tokens are added and recognised."""
        question: Mapping[str, Any] = {"content": text, "add_special": True, "parse_special": True}
        reply = await self._ask("POST", f"{address.url}/tokenize", msgspec.json.encode(question))
        return _decoded(reply, _Tokens).tokens

    async def _ask(
        self, method: str, url: str, body: bytes | None = None, timeout: httpx.Timeout = ANSWER_TIMEOUT
    ) -> Reply:
        if self._client is None:
            raise EngineUnreachable("llama-server was asked before the engine was opened")
        try:
            async with self._client.stream(method, url, content=body, timeout=timeout) as response:
                return await _bounded(response)
        except httpx.HTTPError as error:
            raise EngineUnreachable(f"llama-server at {url}: {str(error) or type(error).__name__}") from error


async def _bounded(response: httpx.Response) -> Reply:
    body = bytearray()
    async for part in response.aiter_raw():
        body += part
        if len(body) > REPLY_LIMIT:
            return Reply(response.status_code, bytes(body[:REPLY_LIMIT]), whole=False)
    return Reply(response.status_code, bytes(body))


def _decoded(reply: Reply, shape: type[T]) -> T:
    if reply.status != httpx.codes.OK:
        raise EngineRefused(f"llama-server answered {reply.status}: {reply.words}")
    if not reply.whole:
        raise EngineRefused(f"llama-server's answer is over {REPLY_LIMIT >> 20} MiB")
    try:
        return msgspec.json.decode(reply.body, type=shape)
    except msgspec.DecodeError as error:
        raise EngineRefused(f"llama-server's answer makes no sense: {error}") from error

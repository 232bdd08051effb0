"""Errors as answers: OpenAI's shape on every path, for every status."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus

import msgspec

from viiwork_core.errors import ViiworkError
from viiwork_core.proxy.exchange import Exchange
from viiwork_core.proxy.headers import Raw
from viiwork_core.proxy.request import Send


def error_body(error: ViiworkError) -> bytes:
    """{"error": {message, type, code, src}}; `src` tells our errors from an engine's."""
    message = f"{error.message}; {error.remedy}" if error.remedy else error.message
    inner = {"message": message, "type": error.type, "code": error.code, "src": "viiwork"}
    return msgspec.json.encode({"error": inner})


def error_headers(error: ViiworkError) -> dict[str, str]:
    """Content type, and Retry-After where waiting helps."""
    headers = {"content-type": "application/json"}
    if error.retry_after is not None:
        headers["retry-after"] = str(error.retry_after)
    return headers


def error_answer(error: ViiworkError, extra: Mapping[str, str] | None = None) -> bytes:
    """An error as `whole_answer`, with `extra` headers, in lower case."""
    return whole_answer(error.status, error_body(error), {**(extra or {}), **error_headers(error)})


def whole_answer(status: int, body: bytes, headers: Mapping[str, str]) -> bytes:
    """An answer in HTTP/1.1, for where no application answers. It ends the connection."""
    every = {**headers, "content-length": len(body), "connection": "close"}
    lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", *(f"{k}: {v}" for k, v in every.items())]
    return "\r\n".join((*lines, "", "")).encode() + body


async def send_json(send: Send, status: int, body: bytes, headers: dict[str, str]) -> None:
    """A whole answer in one go."""
    raw: list[Raw] = [(name.encode(), value.encode("latin-1", "replace")) for name, value in headers.items()]
    raw.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": body, "more_body": False})


async def send_error(
    send: Send, error: ViiworkError, *, request_id: str, extra: Mapping[str, str] | None = None
) -> None:
    """An error as the whole answer, with `extra` headers, in lower case."""
    headers = {**(extra or {}), **error_headers(error), "x-request-id": request_id}
    await send_json(send, error.status, error_body(error), headers)


async def send_cut(exchange: Exchange, error: ViiworkError) -> None:
    """Show a client that its answer was cut.

    In HTTP/1.1 by sending nothing more: the server breaks the connection off in the middle of the answer. An HTTP/1.0
    client cannot tell that from an end, and an HTTP/2 client would wait for ever: a stream of events ends for them with
    an event that is an error, and any other answer without its last part.
    """
    if exchange.http == "1.1":
        return
    if exchange.streams:
        # The event that was cut, if one was, ends here and cannot be read.
        await exchange.pass_on(b"\n\ndata: " + error_body(error) + b"\n\n")
    if exchange.http != "1.0":
        exchange.last = b""
        await exchange.finish()

"""The read endpoints, in Quart."""

from __future__ import annotations

from typing import Any

import msgspec
from quart import Quart, Response, request
from werkzeug.exceptions import HTTPException

from viiwork_core.errors import InvalidRequest, MethodNotAllowed, NotFound, ViiworkError
from viiwork_core.proxy.request import request_id
from viiwork_core.web.error_pages import error_body, error_headers
from viiwork_core.web.surface import Surface


def read_endpoints(surface: Surface) -> Quart:
    """GET /v1/models, /v1/status, /health. Errors have OpenAI's shape, also for unknown paths and methods."""
    app = Quart("viiwork_core.web")
    # Nothing here streams or takes a body; a handler that hangs is a defect that must not hold a connection for ever.
    app.config.update(RESPONSE_TIMEOUT=30, BODY_TIMEOUT=10, MAX_CONTENT_LENGTH=64 * 1024)

    @app.get("/v1/models")
    async def models() -> Response:
        return _json({"object": "list", "data": surface.models()})

    @app.get("/v1/status")
    async def status() -> Response:
        return _json(surface.status())

    @app.get("/health")
    async def health() -> Response:
        code, body = surface.health()
        return _json(body, code)

    @app.errorhandler(HTTPException)
    async def refused(error: HTTPException) -> Response:
        return _refusal(_as_ours(error))

    return app


def _as_ours(error: HTTPException) -> ViiworkError:
    if error.code == MethodNotAllowed.status:
        return MethodNotAllowed(f"{request.method} is not allowed on {request.path}")
    if error.code == NotFound.status:
        return NotFound(f"no such path: {request.path}")
    return InvalidRequest(error.description or error.name)


def _refusal(error: ViiworkError) -> Response:
    headers = {**error_headers(error), "x-request-id": request_id(_raw(request.headers))}
    return Response(error_body(error), status=error.status, headers=headers)


def _raw(headers: Any) -> list[tuple[bytes, bytes]]:
    return [(name.encode("latin-1"), value.encode("latin-1", "replace")) for name, value in headers.items()]


def _json(body: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(body), status=status, content_type="application/json")

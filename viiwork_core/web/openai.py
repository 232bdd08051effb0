"""The read endpoints, in Quart."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, cast

import msgspec
from quart import Quart, Response, request
from werkzeug.exceptions import HTTPException

from viiwork_core.errors import InvalidRequest, MethodNotAllowed, NotFound, ViiworkError
from viiwork_core.observe import metrics
from viiwork_core.proxy.request import Scope, request_id
from viiwork_core.security.keys import SCOPE_KEY, ApiKey
from viiwork_core.web import catalog, prompts
from viiwork_core.web.error_pages import error_body, error_headers
from viiwork_core.web.pages import add_pages
from viiwork_core.web.surface import Surface

_HOST = re.compile(r"[A-Za-z0-9._\-]+(:[0-9]{1,5})?|\[[0-9A-Fa-f:.]+\](:[0-9]{1,5})?", re.ASCII)

MOST_NAMES = 50
"""Models that an error lists."""


def read_endpoints(surface: Surface) -> Quart:
    """What is read now and then. Errors have OpenAI's shape, also for unknown paths and methods."""
    app = Quart("viiwork_core.web", static_folder=None)
    # A path is as it is written: no redirects, which would be the only answers here in another shape.
    app.url_map.merge_slashes = False
    app.url_map.strict_slashes = True
    # Nothing here streams or takes a body; a handler that hangs is a defect that must not hold a connection for ever.
    app.config.update(RESPONSE_TIMEOUT=30, BODY_TIMEOUT=10, MAX_CONTENT_LENGTH=64 * 1024)
    _lists_of_models(app, surface)
    _about_requests(app, surface)
    add_pages(app, surface.access, surface.prompts.mode if surface.prompts else "off")

    @app.get("/v1/status")
    async def status() -> Response:
        return _json(surface.status())

    @app.get("/v1/status/history")
    async def history() -> Response:
        return _json(surface.outlook.hour())

    @app.get("/v1/cluster")
    async def cluster() -> Response:
        return _json(await surface.outlook.cluster())

    @app.get("/v1/fleet/capacity")
    async def fleet() -> Response:
        return _json(surface.outlook.fleet(request.args.get("model")))

    @app.get("/health")
    async def health() -> Response:
        code, body = surface.health()
        return _json(body, code)

    @app.get("/metrics")
    async def prometheus() -> Response:
        return Response(surface.metrics(), content_type=metrics.CONTENT_TYPE)

    @app.after_request
    async def named(response: Response) -> Response:
        response.headers.setdefault("x-request-id", request_id(_raw(request.headers)))
        return response

    @app.errorhandler(HTTPException)
    async def refused(error: HTTPException) -> Response:
        return _refusal(_as_ours(error))

    return app


def _about_requests(app: Quart, surface: Surface) -> None:
    @app.get("/v1/activity")
    async def activity() -> Response:
        found: dict[str, Any] = {"events": surface.events.events()}
        if surface.prompts is not None and prompts.may_read(surface.access, cast(Scope, request.scope)):
            found["prompts"] = surface.prompts.told()
        return _json(found)

    @app.get(prompts.PATH)
    async def kept() -> Response:
        rid = request.args.get("rid")
        try:
            prompts.check_reader(surface.access, cast(Scope, request.scope))
            if surface.prompts is None:
                remedy = "set activity.prompts to sizes or full, and restart the node"
                raise NotFound("nothing is kept of what clients ask: activity.prompts is off", remedy=remedy)
            if rid is not None:
                return _json(surface.prompts.one(rid))
            return _json({"node": surface.node, "mode": surface.prompts.mode, "prompts": surface.prompts.told()})
        except ViiworkError as error:
            return _refusal(error)

    @app.get("/v1/why/<path:rid>")
    async def why(rid: str) -> Response:
        try:
            # Whom a member asks asks nobody else.
            return _json(await surface.why(rid, "here" not in request.args))
        except ViiworkError as error:
            return _refusal(error)


def _lists_of_models(app: Quart, surface: Surface) -> None:
    opened = int(surface.inference.clock.wall())

    @app.get("/v1/models")
    async def models() -> Response:
        return _json(catalog.openai(_models(surface), opened))

    @app.get("/v1/models/<path:name>")
    async def model(name: str) -> Response:
        records = _models(surface)
        found = next((one for one in records if one.id == name), None)
        if found is None:
            return _refusal(_unknown(name, records))
        return _json(catalog.openai_entry(found, opened))

    @app.get("/v1/model/info")
    async def model_info() -> Response:
        return _json(catalog.litellm(_models(surface)))

    @app.get("/api.json")
    async def opencode() -> Response:
        found = surface.outlook.catalog(_models(surface), _base())
        if found is None:
            return _refusal(NotFound("no such path: /api.json", remedy="set api.catalog.enabled to true"))
        return _json(found)


def _models(surface: Surface) -> list[catalog.ModelRecord]:
    """Those that the client's API key is for, as it may name them: all without one."""
    key = cast(ApiKey | None, request.scope.get(SCOPE_KEY))
    records = surface.models()
    if key is None or not key.models:
        return records
    return [one for one in records if key.allows(one.id) or (one.target is not None and key.allows(one.target))]


def _base() -> str:
    """This node's API as the client has reached it."""
    host = request.headers.get("host", "")
    if not _HOST.fullmatch(host):
        address, port = request.scope.get("server") or ("localhost", None)
        host = f"[{address}]" if ":" in address else address
        host += f":{port}" if port is not None else ""
    return f"{request.scheme}://{host}"


def _as_ours(error: HTTPException) -> ViiworkError:
    if error.code == MethodNotAllowed.status:
        return MethodNotAllowed(f"{request.method} is not allowed on {request.path}")
    if error.code == NotFound.status:
        return NotFound(f"no such path: {request.path}")
    return InvalidRequest(error.description or error.name)


def _unknown(name: str, records: Sequence[catalog.ModelRecord]) -> NotFound:
    more = f" and {len(records) - MOST_NAMES} more" if len(records) > MOST_NAMES else ""
    known = (", ".join(record.id for record in records[:MOST_NAMES]) or "none") + more
    return NotFound(f'model "{name}" is not served by any node', remedy=f"known models: {known}")


def _refusal(error: ViiworkError) -> Response:
    headers = {**error_headers(error), "x-request-id": request_id(_raw(request.headers))}
    return Response(error_body(error), status=error.status, headers=headers)


def _raw(headers: Any) -> list[tuple[bytes, bytes]]:
    return [(name.encode("latin-1"), value.encode("latin-1", "replace")) for name, value in headers.items()]


def _json(body: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(body), status=status, content_type="application/json")

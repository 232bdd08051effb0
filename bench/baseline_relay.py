"""The plain way to write a relay: Quart and httpx, on Hypercorn as it comes, without uvloop.

python bench/baseline_relay.py PORT BACKEND_URL
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator

import httpx
import hypercorn.asyncio
import hypercorn.config
from quart import Quart, Response, request

PATH = "/v1/chat/completions"


def create_app(backend: str) -> Quart:
    """The relay as an application."""
    app = Quart(__name__)
    # No proxy of the environment, and no bound below the connections of the load.
    limits = httpx.Limits(max_connections=2000, max_keepalive_connections=2000)
    client = httpx.AsyncClient(limits=limits, timeout=None, trust_env=False)  # noqa: S113  # as long as the engine takes

    @app.post(PATH)
    async def relay() -> Response:
        headers = {"content-type": request.headers["content-type"]}
        sent = client.build_request("POST", backend + PATH, content=await request.get_data(), headers=headers)
        answer = await client.send(sent, stream=True)

        async def body() -> AsyncIterator[bytes]:
            try:
                async for chunk in answer.aiter_raw():
                    yield chunk
            finally:
                await answer.aclose()

        return Response(body(), status=answer.status_code, headers={"content-type": answer.headers["content-type"]})

    @app.after_serving
    async def close() -> None:
        await client.aclose()

    return app


def main() -> None:
    """Serve until ended."""
    port, backend = sys.argv[1:]
    server = hypercorn.config.Config()
    server.bind = [f"127.0.0.1:{port}"]
    server.loglevel = "WARNING"
    asyncio.run(hypercorn.asyncio.serve(create_app(backend), server))


if __name__ == "__main__":
    main()

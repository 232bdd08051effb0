"""What the engine makes of answers that a healthy wrapper would not give."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from viiwork_core import Address, Context, EngineRefused, EngineUnreachable, Load, Phase, Probe, SessionRef, Spec
from viiwork_mlx.cache import MlxCache
from viiwork_mlx.engine import MlxEngine
from viiwork_mlx.options import MlxOptions


@contextmanager
def answering(status: int, body: str) -> Iterator[Address]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body.encode())

        do_POST = do_GET  # noqa: N815 - the same

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is http.server's
            return

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield Address("127.0.0.1", server.server_port)
        finally:
            server.shutdown()
            thread.join()


def probe(context: Context, address: Address) -> Probe:
    async def run() -> Probe:
        async with MlxEngine(MlxOptions(), context) as engine:
            return await engine.probe(address)

    return asyncio.run(run())


def version(context: Context, address: Address) -> str | None:
    async def run() -> str | None:
        async with MlxEngine(MlxOptions(), context) as engine:
            return await engine.version(address)

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ('{"status": "ok", "mlx_lm": "0.32.2"}', "0.32.2"),
        ('{"status": "ok"}', None),
        ('{"mlx_lm": "two words"}', None),
        ("[]", None),
    ],
)
def test_the_version_is_read(context: Context, body: str, expected: str | None) -> None:
    with answering(200, body) as address:
        assert version(context, address) == expected


def load(context: Context, spec: Spec, address: Address) -> Load:
    async def run() -> Load:
        async with MlxEngine(MlxOptions(), context) as engine:
            return await engine.load(spec, address)

    return asyncio.run(run())


def test_loading_is_a_good_answer(context: Context) -> None:
    with answering(503, '{"status": "loading"}') as address:
        assert probe(context, address) == Probe(ready=False, phase=Phase.LOADING)


@pytest.mark.parametrize(
    ("status", "body"), [(503, '{"status": "unavailable"}'), (200, "ok"), (404, "Not Found"), (200, "[]")]
)
def test_what_is_not_the_wrapper_is_not_ready(context: Context, status: int, body: str) -> None:
    with answering(status, body) as address:
        found = probe(context, address)
    assert not found.ready
    assert str(status) in (found.reason or "")


def test_nobody_listens(context: Context, spec: Spec) -> None:
    with answering(200, "") as address:
        pass
    with pytest.raises(EngineUnreachable, match="did not answer GET /health"):
        probe(context, address)
    with pytest.raises(EngineUnreachable, match="did not answer GET /slots"):
        load(context, spec, address)


def test_load_is_read(context: Context, spec: Spec) -> None:
    with answering(200, '{"slots": 4, "busy": 1, "waiting": 2, "context": null}') as address:
        assert load(context, spec, address) == Load(slots=4, busy=1, waiting=2, context=None)


@pytest.mark.parametrize(
    "body", ['{"slots": 4, "busy": true, "waiting": 0}', '{"slots": 4, "waiting": 0}', "Not Found"]
)
def test_a_figure_is_not_guessed(context: Context, spec: Spec, body: str) -> None:
    with answering(200, body) as address, pytest.raises(EngineRefused):
        load(context, spec, address)


def test_a_refused_save_carries_the_servers_words(context: Context, spec: Spec) -> None:
    async def save(address: Address) -> None:
        async with MlxCache(MlxOptions(), context) as cache:
            await cache.save(spec, address, SessionRef("ab12"), "file")

    with (
        answering(404, '{"error": "nothing of this session is in the prompt cache"}') as address,
        pytest.raises(EngineRefused, match="POST /kv/save with 404: nothing of this session"),
    ):
        asyncio.run(save(address))

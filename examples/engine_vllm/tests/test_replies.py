"""What the engine makes of vLLM's recorded replies."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TypeVar

import pytest
from aiohttp import web
from viiwork_core import Address, Context, EngineRefused, EngineUnreachable, Load, Probe, Spec
from viiwork_core.testing.conversation import Usage, read_usage

from viiwork_vllm.engine import VllmEngine
from viiwork_vllm.metrics import QUIET_S, Metrics, Pulse, read_metrics
from viiwork_vllm.options import VllmOptions

RECORDINGS = Path(__file__).parent / "recordings"
ADDRESS = Address("127.0.0.1", 4001)

T = TypeVar("T")
Reply = tuple[int, str]


def recorded(name: str) -> str:
    return (RECORDINGS / name).read_text()


def asked(context: Context, replies: Mapping[str, Reply], ask: Callable[[VllmEngine, Address], Awaitable[T]]) -> T:
    """What `ask` returns of an open engine and a server with these replies, by path."""

    async def reply(request: web.Request) -> web.Response:
        status, text = replies.get(request.path, (404, '{"detail":"Not Found"}'))
        return web.Response(status=status, text=text)

    async def scene() -> T:
        app = web.Application()
        app.router.add_get("/{path:.*}", reply)
        runner = web.AppRunner(app)
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            async with VllmEngine(VllmOptions(), context) as engine:
                return await ask(engine, Address("127.0.0.1", runner.addresses[0][1]))
        finally:
            await runner.cleanup()

    return asyncio.run(scene())


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (200, Probe(ready=True, progress=1.0)),
        (503, Probe(ready=False, reason="vLLM says that its engine process is dead")),
        (500, Probe(ready=False, reason="vLLM's /health answered 500")),
    ],
)
def test_health(context: Context, status: int, expected: Probe) -> None:
    assert asked(context, {"/health": (status, "")}, lambda engine, at: engine.probe(at)) == expected


def test_a_closed_port_is_a_model_that_loads(context: Context) -> None:
    async def scene() -> None:
        async with VllmEngine(VllmOptions(), context) as engine:
            await engine.probe(Address("127.0.0.1", 1))

    with pytest.raises(EngineUnreachable, match="did not answer GET /health"):
        asyncio.run(scene())


@pytest.mark.parametrize(
    ("text", "version"),
    [
        (recorded("version.json"), "0.11.0"),
        ('{"version":"0.22.1rc1.dev166+gd0975a4b5"}', "0.22.1rc1.dev166+gd0975a4b5"),
        ('{"version":"0.10.2rc3.dev447+g58c360d9b.d20250924.precompiled"}', "0.10.2rc3.dev447+g58c360d9b.d20250924.pr"),
        ('{"version":"\\u00e4"}', None),
        ("{}", None),
        ("no version", None),
    ],
)
def test_version(context: Context, text: str, version: str | None) -> None:
    assert asked(context, {"/version": (200, text)}, lambda engine, at: engine.version(at)) == version


def load(context: Context, spec: Spec, metrics: Reply, models: Reply | None = None) -> Load:
    models = models or (200, recorded("models.json"))
    replies = {"/metrics": metrics, "/v1/models": models}
    return asked(context, replies, lambda engine, at: engine.load(spec, at))


@pytest.mark.parametrize(
    ("name", "busy", "waiting"), [("metrics.txt", 2, 1), ("metrics_two_engines.txt", 4, 0), ("metrics_old.txt", 0, 0)]
)
def test_load(context: Context, spec: Spec, name: str, busy: int, waiting: int) -> None:
    expected = Load(slots=2, busy=busy, waiting=waiting, context=4096)
    assert load(context, spec, (200, recorded(name))) == expected


def test_a_load_that_nobody_tells_is_refused(context: Context, spec: Spec) -> None:
    told = (200, recorded("metrics.txt"))
    with pytest.raises(EngineRefused, match="do not say how many requests"):
        load(context, spec, (200, "# HELP vllm:num_requests_running Number of requests.\n"))
    with pytest.raises(EngineRefused, match="status 404"):
        load(context, spec, (404, ""))
    with pytest.raises(EngineRefused, match="does not list tiny"):
        load(context, spec, told, (200, recorded("models.json").replace("tiny", "another")))
    with pytest.raises(EngineRefused, match="status 401, does not list tiny"):
        load(context, spec, told, (401, '{"error":"Unauthorized"}'))
    unknown = recorded("models.json").replace('"max_model_len":4096', '"max_model_len":null')
    assert load(context, spec, told, (200, unknown)).context is None


@pytest.mark.parametrize("value", ["NaN", "-1.0", "+Inf", "2.5", "many", "1e400", "1.5e+00"])
def test_an_impossible_figure_is_refused(value: str) -> None:
    text = recorded("metrics.txt").replace(
        'running{engine="0",model_name="tiny"} 2.0', f'running{{engine="0"}} {value}'
    )
    with pytest.raises(EngineRefused, match="no usable num_requests_running"):
        read_metrics(text)


def test_figures_are_read_whatever_the_model_is_called() -> None:
    text = recorded("metrics.txt").replace("tiny", "a } b{ c")
    assert read_metrics(text) == Metrics(running=2, waiting=1, steps=412)
    assert read_metrics(recorded("metrics_two_engines.txt")).steps == 1203505
    assert read_metrics(text.replace(" 412.0", " 1e+06")).steps == 1000000
    assert read_metrics(recorded("metrics_old.txt")).steps is None


def test_gauges_that_a_cancelled_request_left_behind_are_not_believed() -> None:
    now = 0.0
    pulse = Pulse(lambda: now)

    def beats(running: int, steps: int | None, at: float) -> bool:
        nonlocal now
        now = at
        return pulse.beats(ADDRESS, Metrics(running, 0, steps))

    assert beats(2, 10, 0)
    assert beats(2, 11, 100)
    assert beats(2, 11, 100 + QUIET_S - 0.1)
    assert not beats(2, 11, 100 + QUIET_S)
    assert beats(2, 12, 200), "another step: it works again"
    assert beats(0, 12, 300), "who says that nothing runs is believed"
    assert beats(1, 12, 400), "and starts anew"
    assert beats(1, None, 500), "a version that does not count steps is believed"
    assert pulse.beats(Address("127.0.0.1", 4002), Metrics(1, 0, 12)), "each server has a pulse of its own"


def chunks(name: str) -> list[dict[str, object]]:
    lines = [line.removeprefix("data: ") for line in recorded(name).splitlines() if line]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


def test_usage_is_where_the_wire_says() -> None:
    assert read_usage(json.loads(recorded("chat.json"))) == Usage(prompt=3617, cached=1600, completion=8)
    assert read_usage(json.loads(recorded("chat_no_details.json"))) == Usage(prompt=3617, cached=0, completion=8)
    *before, last = chunks("stream.txt")
    assert read_usage(last) == Usage(prompt=3617, cached=1600, completion=2)
    assert last["choices"] == []
    assert not any(read_usage(one) for one in before)


@pytest.mark.parametrize(
    ("name", "status"), [("error_model.json", 404), ("error_context.json", 400), ("error_model_old.json", 404)]
)
def test_errors_name_their_status(name: str, status: int) -> None:
    body = json.loads(recorded(name))
    error = body.get("error", body)
    assert (error["code"], type(error["message"])) == (status, str)


def test_every_recording_has_its_source() -> None:
    told = (RECORDINGS / "README.md").read_text()
    assert not [file.name for file in RECORDINGS.iterdir() if file.suffix != ".md" and f"| `{file.name}` |" not in told]

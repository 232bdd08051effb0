"""The double when something ends: its engine, its server, its model, its process. With the fact sheet's words."""

from __future__ import annotations

import json
import signal
import socket
import sys
from pathlib import Path

import anyio
import anyio.to_thread
import httpx
import pytest

from viiwork_core import Address, Context, EngineRefused, EngineUnreachable, Spec
from viiwork_strata.engine import StrataEngine
from viiwork_strata.testing import write_config
from viiwork_strata.testing.double import Told
from viiwork_strata.testing.handler import DoubleServer
from viiwork_strata.testing.machine import Machine
from viiwork_strata.testing.settings import parse

from .conftest import (
    CHAT,
    HELLO,
    OPTIONS,
    SESSION,
    Running,
    Start,
    events,
    free_port,
    get,
    kill_engine,
    piped,
    spawn,
    until,
    until_ready,
    until_says,
)

pytestmark = pytest.mark.anyio


# The engine's death


async def test_a_killed_engine_leaves_its_server_up(start: Start) -> None:
    """Strata: "engine killed (RAM): server stays up, /health 200 loaded:false, /slots []"; models "data is [] when the
    engine is dead"; props "503 when the engine is not running"."""
    a = await start("a")
    await kill_engine(a)
    assert (await get(a, "/health")).status_code == 200
    assert (await get(a, "/slots")).json() == []
    assert (await get(a, "/v1/models")).json()["data"] == []
    assert (await get(a, "/props")).status_code == 503
    probe = await a.engine.probe(a.address)
    assert (probe.ready, probe.reason) == (False, "Strata's engine process has no model loaded")
    with pytest.raises(EngineRefused, match="lists no slots: its engine process is not running"):
        await a.engine.load(a.spec, a.address)
    with pytest.raises(EngineRefused, match="save with 503: the model is not loaded"):
        await a.cache.save(a.spec, a.address, SESSION, "one.sess")
    assert await a.engine.version(a.address) is None


async def test_the_next_request_restarts_the_engine_and_waits_for_it(start: Start) -> None:
    """Strata: "the NEXT request restarts the engine and blocks for minutes"; requests "waiting across a restart"."""
    a = await start("a", "--load-seconds", "0.4")
    await kill_engine(a)
    async with anyio.create_task_group() as group:
        group.start_soon(a.chat, HELLO)
        await until_says(a, "/status", busy=True)
        assert not (await a.engine.probe(a.address)).ready
        group.start_soon(a.chat, HELLO)
    assert (await a.engine.probe(a.address)).ready


async def test_an_engine_that_dies_in_a_stream_ends_it_with_an_error_and_done(start: Start) -> None:
    """Strata: "`data: {"error":{"type":"server_error","message":"...; the next request restarts it"}}` and THEN `data:
    [DONE]` -> [DONE] alone does not prove success"."""
    a = await start("a", "--die-after", "3")
    lines = await events(a)
    assert lines[-1] == "data: [DONE]"
    error = json.loads(lines[-2].removeprefix("data: "))["error"]
    assert (error["type"], error["message"].endswith("; the next request restarts it")) == ("server_error", True)
    assert sum('"content": "' in line and '"content": ""' not in line for line in lines) == 3
    assert not (await a.engine.probe(a.address)).ready
    assert '"usage"' in (await events(a))[-2]
    assert (await a.engine.probe(a.address)).ready


@pytest.mark.parametrize(("after", "stream"), [("0", True), ("0", False), ("3", False)])
async def test_an_engine_that_dies_before_the_answer_is_503(start: Start, after: str, stream: bool) -> None:
    """Strata: "503 server_error (engine died before the answer began / starting / GPU busy / stuck)"."""
    a = await start("a", "--die-after", after)
    answer = await a.post(CHAT, {"messages": HELLO, "stream": stream})
    assert (answer.status_code, answer.json()["error"]["type"]) == (503, "server_error")
    assert (await a.post(CHAT, {"messages": HELLO, "stream": stream})).status_code == 200


async def test_a_silent_engine_is_killed_after_a_while(start: Start) -> None:
    """Strata: "`: keep-alive` SSE comment about every 10 s of engine silence"; "killed after engine_silence_s (300 s)".
    The double is told shorter times."""
    a = await start("a", "--silent-after", "2", "--keep-alive-seconds", "0.1", engine_silence_s=0.6)
    lines = await events(a)
    assert lines.count(": keep-alive") >= 3
    assert "said nothing for too long" in lines[-2]
    assert lines[-1] == "data: [DONE]"
    assert not (await a.engine.probe(a.address)).ready


async def test_a_silent_engine_notices_that_its_client_left(start: Start) -> None:
    """Strata: "client hang-ups were noticed late (now polled every 0.5 s)"; "default 300, 0 = forever"."""
    a = await start("a", "--silent-after", "2", engine_silence_s=0)
    with anyio.move_on_after(0.5):
        await events(a)
    await until_says(a, "/status", busy=False)
    assert (await a.engine.probe(a.address)).ready


async def test_a_server_that_dies_ends_its_stream_without_done(start: Start) -> None:
    """Strata: "Python server death: stream just closes, no [DONE]"."""
    a = await start("a", "--crash-after", "3")
    lines = await events(a)
    assert len(lines) >= 4
    assert "[DONE]" not in lines[-1]
    with pytest.raises(EngineUnreachable):
        await a.engine.probe(a.address)
    a.process.wait(10)
    a.process.returncode = 0  # as the fixture expects of one that it ends itself


# Loading and unloading


async def test_a_lazy_server_listens_without_a_model(tmp_path: Path, context: Context) -> None:
    """Strata: "loaded=false when lazy, idle-unloaded, or the engine process is dead/restarting"."""
    path = write_config(tmp_path, "tiny", lazy_load=True)
    spec = Spec("tiny", 0, 1, path, 4096, 1, port=free_port())
    address = Address(spec.host, spec.port)
    async with StrataEngine(OPTIONS, context) as engine:
        process = spawn(engine, spec)
        try:
            a = Running(spec, address, engine, None, process)  # type: ignore[arg-type]  # no cache is asked
            await until(lambda: listens(a))
            assert (await get(a, "/health")).json()["loaded"] is False
            assert (await get(a, "/v1/models")).json()["data"][0]["status"] == {"value": "unloaded"}
            await a.chat(HELLO)
            assert (await engine.probe(address)).ready
        finally:
            process.terminate()
            process.wait(20)


async def listens(running: Running) -> bool:
    try:
        return (await get(running, "/health")).status_code == 200
    except httpx.ConnectError:
        return False


async def test_unload_is_refused_while_it_works(start: Start) -> None:
    """Strata: "/unload: 200 {"status":"unloaded"|"not loaded"|"unsupported"} or 409 busy"; "409 model_busy"."""
    a = await start("a", "--token-seconds", "0.05")
    async with anyio.create_task_group() as group:
        group.start_soon(a.chat, HELLO)
        await until_says(a, "/status", busy=True)
        answer = await a.post("/unload", {})
        assert (answer.status_code, answer.json()["error"]["type"]) == (409, "model_busy")
    said = [(await a.post(path, {})).json()["status"] for path in ("/v1/unload", "/unload", "/load")]
    assert said == ["unloaded", "not loaded", "loaded"]


async def test_an_idle_server_unloads_itself(start: Start) -> None:
    """Strata: "--idle-unload S"; an unloaded engine is loaded again by the next request."""
    a = await start("a", "--idle-unload", "0.5", prepare=False)
    await until_says(a, "/health", loaded=False)
    await a.chat(HELLO)
    await until_says(a, "/health", loaded=False)
    assert a.process.poll() is None


# Its process


def by_hand(config: Path | None) -> list[str]:
    return [sys.executable, "-m", "viiwork_strata.testing.double", "--config", str(config)]


async def test_its_end_takes_time_and_a_second_signal_cuts_it_short(tmp_path: Path, context: Context) -> None:
    """Strata: "SIGTERM handled like Ctrl+C: stop HTTP, engine gets QUIT on stdin (20 s), then terminate (20 s), then
    kill (20 s). A second SIGINT kills the engine at once"."""
    spec = Spec("tiny", 0, 1, write_config(tmp_path, "tiny"), 4096, 1, port=free_port(), args=("--stop-seconds", "60"))
    address = Address(spec.host, spec.port)
    async with StrataEngine(OPTIONS, context) as engine:
        process = piped(*by_hand(spec.path), "--port", str(spec.port), *spec.args)
        assert process.stdout is not None
        await until_ready(engine, address)
        process.terminate()
        said = [await anyio.to_thread.run_sync(process.stdout.readline) for _ in range(3)]
        assert said[-1] == b"[strata] stopping the engine\n"
        with pytest.raises(EngineUnreachable):
            await engine.probe(address)
        process.send_signal(signal.SIGINT)
        assert await anyio.to_thread.run_sync(process.wait, 20) == 0
        assert process.stdout.read() == b"[strata] the engine is killed\n"
        process.stdout.close()


def test_a_signal_between_two_requests_ends_it_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def told(*_: object) -> None:
        raise Told

    settings = parse(["--config", str(write_config(tmp_path, "tiny")), "--port", "0"])
    monkeypatch.setattr(DoubleServer, "process_request", told)
    with (
        DoubleServer(Machine(settings)) as server,
        socket.create_connection(server.server_address[:2]),
        pytest.raises(Told),
    ):
        server.serve_forever(poll_interval=0.05)


async def test_it_is_run_by_hand(tmp_path: Path) -> None:
    """Strata: "stages go to stdout as `[strata] ...`; final line starts `ready: http://HOST:PORT/v1`"."""
    path, port = write_config(tmp_path, "tiny"), str(free_port())
    process = piped(*by_hand(path), "--port", port, "--load-seconds", "0.2")
    assert process.stdout is not None
    said = [await anyio.to_thread.run_sync(process.stdout.readline) for _ in range(2)]
    process.terminate()
    assert process.wait(20) == 0
    process.stdout.close()
    assert said == [b"[strata] loading tiny\n", f"ready: http://127.0.0.1:{port}/v1\n".encode()]


async def test_its_help_names_its_faults() -> None:
    told = await anyio.run_process([sys.executable, "-m", "viiwork_strata.testing.double", "--help"])
    assert all(flag in told.stdout for flag in (b"--die-after", b"--silent-after", b"--crash-after", b"SIGUSR1"))


async def test_an_empty_key_ends_it_early(tmp_path: Path) -> None:
    """Strata: "empty api key -> return 2"."""
    argv = [*by_hand(write_config(tmp_path, "tiny")), "--api-key", ""]
    assert (await anyio.run_process(argv, check=False)).returncode == 2

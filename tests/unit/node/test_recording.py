"""The trace that a node records, and that the simulator replays it."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from viiwork_core.cli.simulate import simulate
from viiwork_core.errors import ConfigError
from viiwork_core.kvshare.turns import Usage
from viiwork_core.node import recording as module
from viiwork_core.node.recording import Recording
from viiwork_core.proxy.body import Body
from viiwork_core.proxy.exchange import Exchange
from viiwork_core.proxy.request import Whose, build
from viiwork_core.simulation.trace import read
from viiwork_core.testing.fake_clock import FakeClock

PATH = "/v1/chat/completions"


def answered(session: str | None, prompt: int | None = 100, completion: int | None = 5, status: int = 200) -> Exchange:
    async def send(message: Any) -> None:
        del message

    scope = {"path": PATH, "raw_path": PATH.encode(), "query_string": b"", "headers": []}
    body = Body(b'{"model":"m","messages":[{"role":"user","content":"a secret"}]}')
    found = Exchange(build(scope, body, Whose(session), pin=None, rid="r"), send)
    found.status, found.usage = status, Usage(prompt, None, completion)
    return found


def recording(path: Path, clock: FakeClock, most_bytes: int = 1 << 20) -> Recording:
    found = Recording(path, clock, most_bytes)
    found.open()
    return found


def test_a_line_for_each_answer(tmp_path: Path) -> None:
    clock, path = FakeClock(), tmp_path / "deep" / "trace.jsonl"
    trace = recording(path, clock)
    clock.advance(10.0)
    trace.note(answered("5e" * 16), 2.5)
    clock.advance(1.0)
    trace.note(answered("5e" * 16, 220, None), 0.5)
    trace.note(answered(None), 0.5)
    trace.note(answered("5e" * 16, None), 0.5)
    trace.note(answered("5e" * 16, status=500), 0.5)
    trace.write()
    first, second, alone = read(path)
    assert json.loads(path.read_text().splitlines()[0]) == {
        "at": 7.5,
        "session": "5e" * 16,
        "prompt_tokens": 100,
        "answer_tokens": 5,
        "seconds": 2.5,
    }
    assert (second.at, second.prompt_tokens, second.answer_tokens) == (10.5, 220, 0)
    assert alone.session != first.session, "a request without a session is one of its own"
    assert "secret" not in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_it_goes_on_after_a_restart_and_a_torn_line(tmp_path: Path) -> None:
    clock, path = FakeClock(), tmp_path / "trace"
    first = recording(path, clock)
    clock.advance(100.0)
    first.note(answered("a" * 32), 1.0)
    first.write()
    with path.open("ab") as file:
        file.write(b'{"at": 3')
    later = FakeClock()
    second = recording(path, later)
    later.advance(7.0)
    second.note(answered("a" * 32), 2.0)
    second.write()
    assert [one.at for one in read(path)] == [99.0, 105.0]


def test_it_is_bounded(tmp_path: Path) -> None:
    clock, path = FakeClock(), tmp_path / "trace"
    trace = recording(path, clock, most_bytes=500)
    for _ in range(40):
        clock.advance(1.0)
        trace.note(answered("a" * 32), 0.0)
        trace.write()
    assert {one.name for one in tmp_path.iterdir()} == {"trace", "trace.1"}
    assert all(one.stat().st_size < 700 for one in tmp_path.iterdir())
    assert read(path)[0].at == 0.0, "each file has a time of its own"
    assert [one.at for one in read(path)] == sorted(one.at for one in read(path))


def test_a_file_that_is_no_trace_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("my notes\n")
    with pytest.raises(ConfigError, match=r"routing\.trace: .* is no record of a trace"):
        recording(path, FakeClock())
    assert path.read_text() == "my notes\n"
    with pytest.raises(ConfigError, match=r"routing\.trace"):
        recording(tmp_path, FakeClock())


def test_a_disk_that_fails_is_told_once_and_holds_up_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "folder" / "trace"
    trace = recording(path, FakeClock())
    path.unlink()
    path.parent.rmdir()
    for _ in range(3):
        trace.note(answered("a" * 32), 0.0)
        trace.write()
    assert (caplog.text + capsys.readouterr().out).count("trace not written") == 1
    path.parent.mkdir()
    trace.note(answered("a" * 32), 0.0)
    trace.write()
    assert len(read(path)) == 1


def test_what_waits_is_written_at_the_end(tmp_path: Path) -> None:
    trace = recording(tmp_path / "trace", FakeClock())

    async def scene() -> None:
        work = asyncio.create_task(trace.run())
        await asyncio.sleep(0)
        trace.note(answered("a" * 32), 0.0)
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)

    asyncio.run(scene())
    assert len(read(tmp_path / "trace")) == 1


def test_the_last_lines_follow_those_that_are_being_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GATHER_S", 0.0)
    trace, begun, go_on = recording(tmp_path / "trace", FakeClock()), threading.Event(), threading.Event()
    write, calls = trace.write, list[str]()

    def slow() -> None:
        calls.append("begins")
        if not begun.is_set():
            begun.set()
            go_on.wait(5)
        write()
        calls.append("ends")

    monkeypatch.setattr(trace, "write", slow)

    async def scene() -> None:
        trace.note(answered("a" * 32), 0.0)
        work = asyncio.create_task(trace.run())
        async with asyncio.timeout(5):
            while not begun.is_set():  # noqa: ASYNC110  # set by another thread
                await asyncio.sleep(0)
        work.cancel()
        await asyncio.sleep(0)
        go_on.set()
        await asyncio.gather(work, return_exceptions=True)

    asyncio.run(scene())
    assert calls == ["begins", "ends"] * 2


class _Noting(type(Path())):  # type: ignore[misc]  # a path of this system
    """Another request ends while the file is turned."""

    note: Callable[[], None]

    def replace(self, target: Path) -> Path:
        self.note()
        return super().replace(target)


def test_a_request_that_ends_while_the_file_is_turned_keeps_its_time(tmp_path: Path) -> None:
    clock, path = FakeClock(), _Noting(tmp_path / "trace")
    path.note = lambda: trace.note(answered("c" * 32), 0.0)
    trace = recording(path, clock, most_bytes=1)
    for _ in range(2):
        clock.advance(10.0)
        trace.note(answered("a" * 32), 0.0)
        trace.write()
    clock.advance(5.0)
    trace.note(answered("a" * 32), 0.0)
    path.note = lambda: None
    trace.write()
    assert [one.at for one in read(path)] == [0.0, 5.0]


def test_the_simulator_replays_it(tmp_path: Path) -> None:
    clock, path = FakeClock(), tmp_path / "trace"
    trace = recording(path, clock)
    for turn in range(6):
        for session in ("a" * 32, "b" * 32):
            clock.advance(5.0)
            trace.note(answered(session, 4000 + 500 * turn, 200), 3.0)
    trace.write()
    result = CliRunner().invoke(
        simulate, ["affinity-study", "--trace", os.fspath(path), "--json"], catch_exceptions=False
    )
    assert result.exit_code == 0
    (figures,) = json.loads(result.output)
    assert figures["turns"] == 12
    assert figures["hit_80"] == 100.0

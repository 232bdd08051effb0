"""Processes and short commands."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from viiwork_core import ConfigError, EngineRefused
from viiwork_core.engines import process
from viiwork_core.engines.commands import OUTPUT_LIMIT, Commands
from viiwork_core.engines.environment import clean_environment
from viiwork_core.engines.listener import Holder, free_port, listener
from viiwork_core.engines.process import Child, LineSink, epitaph, start_group

LISTEN = """
import os, socket, sys, time
server = socket.create_server((sys.argv[1], int(sys.argv[2])))
if sys.argv[3] == "fork" and os.fork():
    os._exit(0)
print("listening", flush=True)
time.sleep(600)
"""


async def started(*argv: str) -> tuple[Child[LineSink], asyncio.Queue[str]]:
    lines: asyncio.Queue[str] = asyncio.Queue()
    return await start_group(argv, clean_environment(), LineSink(lines.put_nowait)), lines


def script(text: str, *args: str) -> tuple[str, ...]:
    return (sys.executable, "-c", text, *args)


def test_stdout_and_stderr_are_read_line_by_line_to_the_end() -> None:
    async def scene() -> tuple[int, list[str]]:
        child, _ = await started("/bin/sh", "-c", "echo one; echo two >&2; printf three; exit 4")
        code = await child.wait()
        await child.end()
        return code, list(child.sink.tail)

    assert asyncio.run(scene()) == (4, ["one", "two", "three"])


@pytest.mark.parametrize("how", ["kill -ILL $$", "sh -c 'kill -ILL $$'; exit $?"])
def test_a_program_for_another_cpu_is_told_as_such(how: str) -> None:
    async def scene() -> str:
        child, _ = await started("/bin/sh", "-c", how)
        await child.wait()
        await child.end()
        return epitaph(child)

    assert "illegal instruction: the program was built for another CPU; build it on this machine" in asyncio.run(
        scene()
    )


def test_what_is_no_program_of_this_machine_is_refused_for_good(tmp_path: Path) -> None:
    garbage = tmp_path / "llama-server"
    garbage.write_bytes(b"\x7fELF this is none")
    garbage.chmod(0o755)
    with pytest.raises(ConfigError, match="Exec format error; it is no program for this machine") as caught:
        asyncio.run(started(str(garbage)))
    assert "install a llama-server that was built for it" in caught.value.remedy


def test_wait_returns_while_a_descendant_holds_the_output_and_end_ends_it() -> None:
    async def scene() -> int:
        child, lines = await started("/bin/sh", "-c", "sleep 600 & echo $!; exit 0")
        orphan = int(await lines.get())
        assert await asyncio.wait_for(child.wait(), 10) == 0
        assert psutil.pid_exists(orphan)
        await child.end()
        return orphan

    orphan = asyncio.run(scene())
    deadline = time.monotonic() + 5
    while psutil.pid_exists(orphan) and psutil.Process(orphan).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline


def test_a_group_gets_sigterm_twice_before_sigkill(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "TERM_AFTER", 0.3)
    monkeypatch.setattr(process, "KILL_AFTER", 0.3)
    trap = "trap 'echo term' TERM; echo ready; while :; do sleep 0.05; done"

    async def scene() -> Child[LineSink]:
        child, lines = await started("/bin/sh", "-c", trap)
        assert await lines.get() == "ready"
        await child.end()
        return child

    child = asyncio.run(scene())
    assert list(child.sink.tail).count("term") == 2
    assert child.returncode == -signal.SIGKILL


def test_the_loop_stays_free_while_a_child_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "TERM_AFTER", 0.3)
    monkeypatch.setattr(process, "KILL_AFTER", 0.3)

    async def scene() -> int:
        child, lines = await started("/bin/sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.05; done")
        await lines.get()
        ending, turns = asyncio.create_task(child.end()), 0
        while not ending.done():
            turns += 1
            await asyncio.sleep(0)
        return turns

    assert asyncio.run(scene()) > 100


def test_a_command_gives_its_status_and_both_outputs() -> None:
    output = asyncio.run(Commands("n").run(("/bin/sh", "-c", "echo out; echo err >&2; exit 2")))
    assert (output.returncode, sorted(output.text.split())) == (2, ["err", "out"])


def test_a_command_gets_a_clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIIWORK_MESH_SECRET", "s3cret")
    output = asyncio.run(Commands("n").run(("/usr/bin/env",)))
    assert "s3cret" not in output.text
    assert "VIIWORK_CHILD_OF=n" in output.text.splitlines()


def test_the_output_of_a_command_is_bounded() -> None:
    output = asyncio.run(Commands("n").run(script(f"print('x' * {3 * OUTPUT_LIMIT})")))
    assert (output.returncode, len(output.text)) == (0, OUTPUT_LIMIT)


def test_a_command_that_does_not_end_is_ended_with_what_it_started(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    with pytest.raises(EngineRefused, match=r"sh did not end within 0\.5 s"):
        asyncio.run(Commands("n", deadline=0.5).run(("/bin/sh", "-c", f"sleep 600 & echo $! > {note}; wait")))
    pid = int(note.read_text())
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_a_command_that_does_not_exist_is_refused() -> None:
    with pytest.raises(EngineRefused, match="cannot start /nowhere/llama-server: No such file"):
        asyncio.run(Commands("n").run(("/nowhere/llama-server", "--version")))


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
@pytest.mark.parametrize("how", ["directly", "fork"])
def test_a_child_or_its_descendant_owns_its_port(host: str, how: str) -> None:
    async def scene() -> Holder:
        port = free_port()
        child, lines = await started(*script(LISTEN, host, str(port), how))
        try:
            assert await lines.get() == "listening"
            return (await listener(port, child.pid)).holder
        finally:
            await child.end()

    assert asyncio.run(scene()) is Holder.OWN


def test_nobody_listens_on_a_free_port() -> None:
    assert asyncio.run(listener(free_port(), os.getpid())).holder is Holder.NOBODY


def test_a_stranger_on_the_loopback_wins_over_our_wildcard_socket() -> None:
    """The kernel hands a connection to the exact address, so our own socket would never see it."""
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])

    async def scene() -> tuple[Holder, int | None]:
        with socket.create_server(("127.0.0.1", 0)) as server:
            found = await listener(server.getsockname()[1], stranger.pid)
            return found.holder, found.pid

    try:
        assert asyncio.run(scene()) == (Holder.STRANGER, os.getpid())
    finally:
        stranger.kill()
        stranger.wait()


def test_a_socket_whose_owner_was_not_seen_yet_is_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    real, looks = psutil.net_connections, []

    def ownerless_at_first(kind: str) -> list[object]:
        looks.append(kind)
        return [one._replace(pid=None) if len(looks) == 1 else one for one in real(kind)]

    async def scene() -> Holder:
        port = free_port()
        child, lines = await started(*script(LISTEN, "127.0.0.1", str(port), "directly"))
        try:
            assert await lines.get() == "listening"
            monkeypatch.setattr(psutil, "net_connections", ownerless_at_first)
            return (await listener(port, child.pid)).holder
        finally:
            await child.end()

    assert asyncio.run(scene()) is Holder.OWN
    assert len(looks) == 2

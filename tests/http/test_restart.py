"""One node a state folder, and what a killed one leaves behind is ended by the next."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from http_node import ask, chat, model, started, until

from viiwork_core.engines.environment import MARKER


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    """A process that another node has started."""
    environ = {**os.environ, MARKER: "viiwork-0123456789abcdef"}
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], env=environ)
    yield process
    process.kill()
    process.wait()


def test_a_start_ends_what_a_killed_node_and_its_killed_sitter_left(
    tmp_path: Path, stranger: subprocess.Popen[bytes]
) -> None:
    shared = {"node": {"name": "again", "state_dir": str(tmp_path / "state")}, "models": [model("m")]}
    with started("first", tmp_path / "one", shared) as first:
        process = psutil.Process(first.process.pid)
        (engine,) = [child.pid for child in process.children() if "scripted_engine.py" in " ".join(child.cmdline())]
        (sitter,) = [child for child in process.children() if "sitter.py" in " ".join(child.cmdline())]
        # Stopped first, so that it is not replaced while the sitter is being killed.
        process.suspend()
        sitter.kill()
        process.kill()
        first.process.wait()
    assert alive(engine), "nobody was left to end it"
    try:
        with started("second", tmp_path / "two", shared) as second:
            assert not alive(engine)
            (line,) = second.events("an earlier run left processes behind, they are ended")
            assert line["pids"] == [engine]
            assert asyncio.run(ask(second, chat("m"))).status == 200
            assert stranger.poll() is None
    finally:
        if alive(engine):
            psutil.Process(engine).kill()


def test_a_second_node_on_the_folder_is_refused_and_harms_nothing(tmp_path: Path) -> None:
    shared = {"node": {"name": "only", "state_dir": str(tmp_path / "state")}, "models": [model("m")]}
    with started("first", tmp_path / "one", shared) as first:
        identity = (tmp_path / "state" / "node.json").read_bytes()
        engine = first.model("m")["backends"][0]["pid"]
        config = tmp_path / "viiwork.yaml"
        config.write_text(json.dumps({**shared, "models": [], "api": {"port": 0}, "mesh": {"network": "none"}}))
        second = subprocess.run(
            [Path(sys.executable).with_name("viiwork"), "serve", "--config", config],
            env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert second.returncode == 1
        assert f"node.state_dir: another node runs with {tmp_path / 'state'} already\nremedy: stop" in second.stderr
        assert (tmp_path / "state" / "node.json").read_bytes() == identity
        assert alive(engine)
        assert first.ready()
    until(lambda: not alive(engine), "the engine ends with its own node")

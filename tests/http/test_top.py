"""viiwork top against a node that runs: once for scripts, and in a terminal."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest
from commands import command
from http_node import Node

COLOURS = re.compile(rb"\x1b\[(?:[0-9]+;)*(?:3[0-8]|4[0-8]|9[0-7]|10[0-7])(?:;[0-9]+)*m")
"""What chooses a colour, of the text or behind it; 39 and 49 are the terminal's own."""

PROGRAM = str(Path(sys.executable).with_name("viiwork"))


def environ(node: Node, **more: str) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "HOME": str(node.folder), **more}


def top(node: Node, *args: str, **more: str) -> subprocess.CompletedProcess[str]:
    return command(node, "top", *args, **more)


def test_one_frame_for_scripts(shared_node: Node) -> None:
    done = top(shared_node, "--once", COLUMNS="100")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0].startswith("viiwork top: no mesh, seen from one, 1 node, 5 models")
    assert any(line.split()[:4] == ["scripted", "one", "scripted", "1"] for line in lines), done.stdout
    assert "\x1b" not in done.stdout
    assert max(map(len, lines)) <= 100


def test_all_of_it_as_json(shared_node: Node) -> None:
    done = top(shared_node, "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told.keys() == {"cluster", "aliases", "requests", "events"}
    assert [one["node"] for one in told["cluster"]["members"]] == ["one"]


def test_without_a_terminal_it_says_what_to_do(shared_node: Node) -> None:
    done = top(shared_node)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "viiwork top needs a terminal\nremedy: for scripts: viiwork top --once, or --json\n"


def test_a_secret_that_is_none_is_said_at_once(shared_node: Node) -> None:
    pytest.importorskip("textual")
    terminal = Terminal(shared_node, 80, 24, VIIWORK_MESH_SECRET="nonsense")
    terminal.until("VIIWORK_MESH_SECRET is not the standard base64")
    assert terminal.process.wait(30) == 2


def test_without_a_node(shared_node: Node, tmp_path: Path) -> None:
    (tmp_path / "viiwork.yaml").write_text(json.dumps({"node": {"state_dir": str(tmp_path / "state")}}))
    nobody = Node("none", tmp_path, shared_node.process)
    done = top(nobody, "--once")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("no node runs with the state folder")


class Terminal:
    """A pseudo-terminal with a program in it. Keeps what that has written."""

    def __init__(self, node: Node, columns: int, lines: int, **more: str) -> None:
        self.fd, inner = pty.openpty()
        fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.written = b""
        self.process = subprocess.Popen(
            [PROGRAM, "top", "--config", str(node.folder / "viiwork.yaml")],
            env=environ(node, TERM="xterm-256color", **more),
            stdin=inner,
            stdout=inner,
            stderr=inner,
            start_new_session=True,
        )
        os.close(inner)

    def until(self, text: str, within: float = 30.0) -> None:
        deadline = time.monotonic() + within
        while text.encode() not in self.written:
            assert time.monotonic() < deadline, self.written[-4000:].decode(errors="replace")
            if select.select([self.fd], [], [], 0.1)[0]:
                self.written += os.read(self.fd, 1 << 16)

    def end(self, within: float = 30.0) -> int:
        """Type q, and read until the program is gone."""
        os.write(self.fd, b"q")
        deadline = time.monotonic() + within
        while self.process.poll() is None:
            assert time.monotonic() < deadline
            if select.select([self.fd], [], [], 0.1)[0]:
                try:
                    self.written += os.read(self.fd, 1 << 16)
                except OSError:  # Linux's way to say that nobody is at the other end
                    break
        code = self.process.wait(within)
        os.close(self.fd)
        return code


def test_in_a_terminal(shared_node: Node) -> None:
    pytest.importorskip("textual")
    terminal = Terminal(shared_node, 100, 30, NO_COLOR="1")
    terminal.until("no mesh, seen from one")
    terminal.until("scripted-draining")
    assert terminal.end() == 0
    assert not COLOURS.search(terminal.written)


def test_in_a_terminal_with_colours(shared_node: Node) -> None:
    pytest.importorskip("textual")
    terminal = Terminal(shared_node, 80, 24)
    terminal.until("scripted-draining")
    assert terminal.end() == 0
    assert COLOURS.search(terminal.written)


def test_without_textual_it_says_what_to_install(shared_node: Node, tmp_path: Path) -> None:
    """A folder before the installed ones has a textual that cannot be imported."""
    missing = tmp_path / "textual"
    missing.mkdir()
    (missing / "__init__.py").write_text('raise ModuleNotFoundError("No module named \'textual\'", name="textual")\n')
    terminal = Terminal(shared_node, 100, 30, PYTHONPATH=str(tmp_path))
    terminal.until("remedy: pip install 'viiwork[top]', or use viiwork top --once")
    assert terminal.process.wait(30) == 2
    assert top(shared_node, "--once", PYTHONPATH=str(tmp_path)).returncode == 0

"""Shells complete commands, options and what the running node knows, and are told of no error."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from http_node import Node, ask, chat

PROGRAM = Path(sys.executable).with_name("viiwork")


def completed(words: str, config: Path, **more: str) -> list[str]:
    """What bash is offered for the last word of a line."""
    line = f"viiwork {words}".replace("CONFIG", str(config))
    done = subprocess.run(
        [PROGRAM],
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(config.parent),
            "_VIIWORK_COMPLETE": "bash_complete",
            "COMP_WORDS": line,
            "COMP_CWORD": str(len(line.split(" ")) - 1),
            **more,
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stderr == ""
    return [one.partition(",")[2] for one in done.stdout.splitlines() if one]


def test_commands_and_options() -> None:
    nowhere = Path("/nowhere/viiwork.yaml")
    assert completed("dr", nowhere) == ["drain"]
    assert {"up", "undrain"} <= set(completed("u", nowhere))
    assert completed("drain --th", nowhere) == ["--then"]
    assert completed("drain --then ", nowhere) == ["stop", "restart"]
    assert completed("completion ", nowhere) == ["bash", "zsh", "fish"]


def test_names_come_from_the_node_that_runs(shared_node: Node) -> None:
    config = shared_node.folder / "viiwork.yaml"
    put = subprocess.run(
        [PROGRAM, "alias", "set", "short-name", "scripted", "--config", config],
        env={"PATH": os.environ["PATH"], "HOME": str(shared_node.folder)},
        capture_output=True,
        check=False,
    )
    assert put.returncode == 0, put.stderr
    assert completed("down --config CONFIG scripted-d", config) == ["scripted-done", "scripted-draining"]
    assert completed("alias rm --config CONFIG s", config) == ["short-name"]
    assert completed("alias set --config CONFIG x scripted-pl", config) == ["scripted-plain"]
    assert completed("alias set --config CONFIG x y --fallback short", config) == ["short-name"]
    answer = asyncio.run(ask(shared_node, chat("scripted"), headers=[("X-Request-Id", "completed-1")]))
    assert answer.status == 200
    assert completed("why --config CONFIG completed-", config) == ["completed-1"]
    assert completed("kv forget --config CONFIG x", config) == []
    node = f"http://{shared_node.host}:{shared_node.port}"
    assert completed(f"models --config CONFIG --node {node} --js", config) == ["--json"]
    assert completed(f"down --node {node} --config CONFIG scripted-u", config) == ["scripted-usage"]


@pytest.mark.parametrize("content", ["", "nonsense: [", json.dumps({"node": {"state_dir": "/nowhere"}})])
def test_without_a_node_nothing_is_offered_and_nothing_said(tmp_path: Path, content: str) -> None:
    config = tmp_path / "viiwork.yaml"
    config.write_text(content)
    assert completed("down --config CONFIG a", config) == []
    assert completed("alias rm --config CONFIG a", tmp_path / "missing.yaml") == []


def test_a_node_that_does_not_answer_is_not_waited_for(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    (state / "node.json").write_text(json.dumps({"api": "http://127.0.0.1:9", "node_id": "x"}))
    config = tmp_path / "viiwork.yaml"
    config.write_text(json.dumps({"node": {"state_dir": str(state)}}))
    assert completed("down --config CONFIG a", config) == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_is_one_that_the_shell_reads(shell: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [PROGRAM, "completion", shell],
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert f"_VIIWORK_COMPLETE={shell}_complete" in done.stdout
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here: its script was printed, and not read")
    (tmp_path / "script").write_text(done.stdout)
    read = subprocess.run([shell, "-n", tmp_path / "script"], capture_output=True, text=True, check=False)
    assert (read.returncode, read.stderr) == (0, "")


def test_bash_completes(tmp_path: Path) -> None:
    if shutil.which("bash") is None:
        pytest.skip("no bash here")
    script = (
        f'eval "$({PROGRAM} completion bash)"; COMP_WORDS=(viiwork undr); COMP_CWORD=1; '
        f'_viiwork_completion {PROGRAM}; echo "${{COMPREPLY[@]}}"'
    )
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    done = subprocess.run(["bash", "-c", script], env=environ, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "undrain\n"), done.stderr

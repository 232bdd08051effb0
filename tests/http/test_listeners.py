"""A plugin's listeners and commands, as a user has them."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

from http_node import Node, ask, chat, model, plugin_path, started, until


def viiwork(folder: Path, *args: str, plugins: str = "telling") -> subprocess.CompletedProcess[str]:
    environ = {"PATH": os.environ["PATH"], "HOME": str(folder), "VIIWORK_PLUGINS": plugins}
    return subprocess.run(
        [str(Path(sys.executable).with_name("viiwork")), *args],
        env={**environ, "PYTHONPATH": plugin_path(folder / "site")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_listeners_are_told_and_a_failing_one_harms_nobody(tmp_path: Path) -> None:
    config = {"models": [model("a")], "listeners": {"written": {"prefix": "> "}, "raises": None}}
    with started("tells", tmp_path / "node", config, plugins="scripted,telling") as node:
        answer = asyncio.run(ask(node, chat("a"), headers=[("X-Request-Id", "told-1")]))
        assert answer.status == 200
        until(lambda: any(one["rid"] == "told-1" and " done (" in one["message"] for one in told(node)), "it is told")
        assert told(node)[0] == {"message": "> tells is up", "type": "system", "rid": None}
        assert {one["type"] for one in told(node)} == {"system", "request"}
        node.heard("a listener fails", listener="raises")
        counts = {one["name"]: one for one in node.get("/v1/status")["listeners"]}
        assert counts["written"]["taken"] >= 3
        assert (counts["written"]["lost"], counts["written"]["failed"]) == (0, 0)
        assert (counts["raises"]["taken"], counts["raises"]["failed"] > 0) == (0, True)
        assert asyncio.run(ask(node, chat("a"))).status == 200


def told(node: Node) -> list[dict[str, str]]:
    file = node.folder / "state" / "plugins" / "written" / "events"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def test_a_configuration_that_names_no_listener_or_a_wrong_option_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "viiwork.yaml"
    for listeners, said in (
        ({"wirtten": {}}, "listeners.wirtten (line 1): no listener wirtten is installed (installed: raises, written)"),
        ({"written": {"suffix": "x"}}, "listeners.written.suffix (line 1): unknown key"),
        ({"written": 5}, "listeners.written (line 1): must be a block of keys"),
    ):
        file.write_text(json.dumps({"mesh": {"network": "none"}, "listeners": listeners}))
        done = viiwork(tmp_path, "config", "check", str(file))
        assert done.returncode == 1
        assert said in done.stderr, done.stderr
    file.write_text(json.dumps({"mesh": {"network": "none"}, "listeners": {"written": {"prefix": "x"}}}))
    assert viiwork(tmp_path, "config", "check", str(file)).returncode == 0
    shown = viiwork(tmp_path, "config", "show", str(file), "--json")
    assert json.loads(shown.stdout)["config"]["listeners"] == {"written": {"prefix": "x"}}
    schema = json.loads(viiwork(tmp_path, "config", "schema").stdout)
    assert set(schema["$defs"]["ListenersConfig"]["properties"]) == {"raises", "written"}


def test_commands_of_plugins(tmp_path: Path) -> None:
    done = viiwork(tmp_path, "hello", "--loud")
    assert (done.returncode, done.stdout, done.stderr) == (0, "HELLO\n", "")
    done = viiwork(tmp_path, "refuse")
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "not today\nremedy: come tomorrow\n")
    assert viiwork(tmp_path, "hello", "--nonsense").returncode == 2
    own = viiwork(tmp_path, "status", "--help")
    assert "Show this machine's node" in own.stdout, "viiwork's own command goes before"
    listed = json.loads(viiwork(tmp_path, "plugin", "list", "--json").stdout)
    offered = {(one["kind"], one["name"]): one for one in listed if one["distribution"] == "strangers"}
    assert offered["command", "hello"]["state"] == "loaded"
    assert offered["listener", "written"]["state"] == "loaded"
    refused = offered["command", "status"]
    assert refused["state"] == "failed"
    assert refused["reason"] == "viiwork has a command status of its own; give it another name"


def test_a_command_that_nobody_has(tmp_path: Path) -> None:
    done = viiwork(tmp_path, "hallo", plugins="")
    assert (done.returncode, done.stdout) == (2, "")
    assert "No such command 'hallo'" in done.stderr


def test_a_plugin_that_fails_breaks_no_command(tmp_path: Path) -> None:
    site = tmp_path / "broken"
    info = site / "broken-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "broken_plugin.py").write_text("import os\nos.write(2, b'LOADED')\nraise RuntimeError('out of order')\n")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[viiwork]\nbroken = broken_plugin\n")
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONPATH": str(site), "VIIWORK_PLUGINS": "broken"}

    def run(*args: str) -> subprocess.CompletedProcess[str]:
        program = str(Path(sys.executable).with_name("viiwork"))
        return subprocess.run([program, *args], env=environ, capture_output=True, text=True, check=False)

    for args in (("--help",), ("drain", "--help"), ("completion", "bash")):
        done = run(*args)
        assert (done.returncode, done.stderr) == (0, ""), "no plugin is loaded for it"
    lost = run("hello")
    assert lost.returncode == 1
    assert "no command hello; plugins failed to load: broken: import failed: RuntimeError: out of order" in lost.stderr
    environ |= {"_VIIWORK_COMPLETE": "bash_complete", "COMP_WORDS": "viiwork hello ", "COMP_CWORD": "2"}
    assert run().returncode == 0

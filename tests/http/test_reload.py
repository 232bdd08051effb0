"""SIGHUP: the configuration is read again while the node runs, and only what changed is touched."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from http_node import Answer, Node, ask, chat, connected, model, soon, started, streamed, until

PIECE = b'data: {"choices":[]}\n\n'
RELOADED = "the configuration is reloaded"
FAILED = "the configuration is not reloaded"
REST: dict[str, Any] = {
    "health": {"interval": "0.3s", "respawn_grace": "20s"},
    "routing": {"queue_timeout": "10s"},
}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    config = {**REST, "models": [model("a"), model("b")]}
    with started("reloads", tmp_path_factory.mktemp("node") / "node", config) as node:
        (node.folder / "first.yaml").write_text((node.folder / "viiwork.yaml").read_text())
        yield node


@pytest.fixture
def node(running: Node) -> Node:
    """The node with the configuration that it was started with."""
    (running.folder / "viiwork.yaml").write_text((running.folder / "first.yaml").read_text())
    hang_up(running)
    until(lambda: running.ready() and len(engines(running)) == 2, "all is as it was")
    return running


def write(node: Node, *models: dict[str, Any], head: str = "", **sections: Any) -> None:
    """A new configuration; JSON is YAML, and `head` stands above it."""
    path = node.folder / "viiwork.yaml"
    known = json.loads("".join(line for line in path.read_text().splitlines() if not line.startswith("#")))
    path.write_text(head + json.dumps({**known, "models": list(models), **sections}))


def hang_up(node: Node, event: str = RELOADED) -> dict[str, Any]:
    """SIGHUP, and the first line that it leads to."""
    before = len(node.events(event))
    node.process.send_signal(signal.SIGHUP)
    return until(lambda: node.events(event)[before:], f"the node says {event!r}")[0]


def pids(node: Node, name: str) -> list[int]:
    return [backend.get("pid", 0) for backend in node.model(name)["backends"]]


def statuses(node: Node, name: str) -> set[str]:
    return {backend["status"] for backend in node.model(name)["backends"]}


def engines(node: Node) -> list[int]:
    """The engine processes that the node runs."""
    return sorted(child.pid for child in psutil.Process(node.process.pid).children() if _is_engine(child))


def _is_engine(child: psutil.Process) -> bool:
    try:
        return "scripted_engine.py" in " ".join(child.cmdline())
    except psutil.Error:  # it has ended since
        return False


def test_added_removed_changed_and_kept(node: Node) -> None:
    kept, changed = pids(node, "a"), pids(node, "b")
    write(node, model("b", parallel=3), model("c"), model("a"))
    line = hang_up(node)
    assert (line["added"], line["removed"], line["changed"], line["kept"]) == (["c"], [], ["b"], ["a"])
    until(node.ready, "all are healthy")
    assert pids(node, "a") == kept
    assert pids(node, "b") != changed
    assert len(node.slots("b")) == 3
    assert [one["id"] for one in node.get("/v1/models")["data"]] == ["a", "b", "c"]
    assert asyncio.run(ask(node, chat("c"))).status == 200

    write(node, model("b", parallel=3))
    line = hang_up(node)
    assert (line["removed"], line["kept"]) == (["c", "a"], ["b"])
    until(lambda: engines(node) == pids(node, "b"), "a and c have ended")
    answer = asyncio.run(ask(node, chat("a")))
    assert (answer.status, answer.error["code"]) == (404, "not_found")
    assert asyncio.run(ask(node, chat("b"))).status == 200


def test_the_same_in_other_words_keeps_every_process(node: Node) -> None:
    kept = engines(node)
    write(node, model("a", env={}, args=[]), model("b", gpus_per_backend=1), head="# a line more\n" * 3)
    assert hang_up(node)["kept"] == ["a", "b"]
    assert engines(node) == kept
    assert node.ready()


def test_a_bad_file_keeps_what_runs_and_says_all_that_is_wrong(node: Node) -> None:
    kept = engines(node)
    write(node, model("a", parallel=0), {**model("c"), "kontext": 1})
    before = len(node.events(FAILED))
    hang_up(node, FAILED)
    told = until(lambda: node.events(FAILED)[before + 1 :] and node.events(FAILED)[before:], "both problems are told")
    assert {line["reason"].split(" ")[0] for line in told} == {"models[0].parallel", "models[1].kontext"}
    write(node, model("a"), model("b", engine="nothing"))
    assert hang_up(node, FAILED)["reason"].startswith("models[1].engine")
    (node.folder / "viiwork.yaml").unlink()
    assert "cannot be read" in hang_up(node, FAILED)["reason"]
    assert engines(node) == kept
    assert node.ready()
    assert [one["id"] for one in node.get("/v1/models")["data"]] == ["a", "b"]


def test_other_sections_are_named(node: Node) -> None:
    kept = engines(node)
    write(node, model("a"), model("b"), routing={"queue_max": 1}, api={"port": 0, "max_body": "1MiB"})
    hang_up(node)
    line = node.events("changed sections need a restart")[-1]
    assert line["sections"] == ["api", "routing"]
    assert engines(node) == kept


def test_a_configuration_saved_twice_within_a_second_makes_no_second_copy(node: Node) -> None:
    for parallel in (1, 3, 2, 4):
        write(node, model("a", parallel=parallel), model("b"), model("c", parallel=parallel))
        node.process.send_signal(signal.SIGHUP)
    most = 0

    def settled() -> bool:
        nonlocal most
        most = max(most, len(engines(node)))
        served = {one["id"] for one in node.get("/v1/models")["data"]}
        return "c" in served and len(node.slots("a")) == len(node.slots("c")) == 4 and node.ready()

    until(settled, "the last one holds")
    assert most <= 3
    assert len(engines(node)) == 3


def test_a_running_request_outlives_its_model(node: Node) -> None:
    steps = streamed(PIECE, PIECE)
    steps.insert(2, ["gate", "go"])

    async def scene() -> tuple[Answer, Answer, Answer]:
        engine = await asyncio.to_thread(node.engine, "a")
        async with asyncio.timeout(30), connected(node) as one, connected(node) as two, connected(node) as three:
            for client in (one, two):
                await client.ask(chat("a", steps))
            running = await one.answer()
            await one.read(running, pieces=1)
            await two.read(await two.answer(), pieces=1)
            await three.ask(chat("a"))
            await soon(lambda: node.model("a")["queued"] == 1, "the third waits")
            write(node, model("b"))
            await asyncio.to_thread(hang_up, node)
            waited = await three.read(await three.answer())
            forwarded = await ask(node, chat("a"), headers=[("X-Viiwork-Forwarded", "another")])
            assert len(await asyncio.to_thread(engines, node)) == 2
            engine.open("go")
            return await one.read(running), waited, forwarded

    finished, waited, forwarded = asyncio.run(scene())
    assert (finished.broken, finished.body) == (False, PIECE + PIECE)
    assert (waited.status, waited.error["code"]) == (404, "not_found")
    # Another node, which knows no better yet, is sent elsewhere and not told that there is no such model.
    assert (forwarded.status, forwarded.headers["retry-after"]) == (503, "1")
    until(lambda: engines(node) == pids(node, "b"), "the engine of a has ended")


def test_who_waits_for_a_changed_model_is_served_by_the_new_one(node: Node) -> None:
    steps = streamed(PIECE, PIECE)
    steps.insert(2, ["gate", "go"])

    async def scene() -> tuple[Answer, Answer]:
        engine = await asyncio.to_thread(node.engine, "a")
        async with asyncio.timeout(30), connected(node) as one, connected(node) as two:
            await one.ask(chat("a", steps))
            running = await one.answer()
            await one.read(running, pieces=1)
            write(node, model("a", parallel=1), model("b"))
            await asyncio.to_thread(hang_up, node)
            await soon(lambda: statuses(node, "a") == {"draining"}, "a drains")
            await two.ask(chat("a"))
            await soon(lambda: node.model("a")["queued"] == 1, "the second waits")
            engine.open("go")
            return await one.read(running), await two.read(await two.answer())

    old, new = asyncio.run(scene())
    assert (old.broken, old.body) == (False, PIECE + PIECE)
    assert new.status == 200
    assert len(node.slots("a")) == 1


def test_what_is_parked_stays_so(node: Node) -> None:
    def parked(name: str, *, down: bool) -> None:
        body = json.dumps({"models": [name]}).encode()
        path = "/v1/models/down" if down else "/v1/models/up"
        answer = asyncio.run(ask(node, body, path=path, headers=[]))
        assert answer.status == 403  # the Host header of these clients is no loopback address
        subprocess.run(
            [
                Path(sys.executable).with_name("viiwork"),
                "down" if down else "up",
                name,
                "--config",
                node.folder / "viiwork.yaml",
            ],
            check=True,
            env={"PATH": os.environ["PATH"], "HOME": str(node.folder)},
        )

    parked("a", down=True)
    until(lambda: statuses(node, "a") == {"parked"}, "a is parked")
    write(node, model("a", parallel=1), model("b"), model("c"))
    assert hang_up(node)["changed"] == ["a"]
    until(lambda: statuses(node, "c") == {"healthy"}, "c has started")
    assert statuses(node, "a") == {"parked"}
    parked("a", down=False)
    until(node.ready, "a is back")
    assert len(node.slots("a")) == 1


def test_a_hang_up_before_the_node_is_open_is_a_reload(tmp_path: Path) -> None:
    """From the moment on at which its process can be seen to hear it, and until it is told."""
    folder = tmp_path / "node"
    folder.mkdir()
    config = {
        "node": {"name": "early", "state_dir": str(folder / "state")},
        "api": {"port": 0},
        "mesh": {"network": "none"},
    }
    (folder / "viiwork.yaml").write_text(json.dumps(config))
    command = [Path(sys.executable).with_name("viiwork"), "serve", "--log-json", "--config", folder / "viiwork.yaml"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=log)
    node = Node("early", folder, process)
    try:
        until(lambda: _hears(process.pid), "it hears SIGHUP")
        while not node.events("starting"):
            assert process.poll() is None, node.log()
            process.send_signal(signal.SIGHUP)
            time.sleep(0.02)  # a load, not a wait: the signal comes at every stage of the start
        node.heard(RELOADED)
        assert process.poll() is None
    finally:
        process.terminate()
        process.wait(20)
    assert process.returncode == 0


def _hears(pid: int) -> bool:
    """Whether the process ignores or catches SIGHUP."""
    try:
        lines = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    except OSError:
        return False
    return bool((int(lines["SigIgn"], 16) | int(lines["SigCgt"], 16)) & 1 << signal.SIGHUP - 1)

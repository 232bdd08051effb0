"""Engines that die or hang while a cache is saved or restored: the turn is cold, and the next one is served."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest
from http_node import Node, ask, chat, started, until
from test_kv import HOSTS, PATH, configuration, moved, places

GATED = {"VIIWORK_TEST_RESTORE": "1"}


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Node, Node]]:
    """Two nodes of the test's own, whose engines save and restore when they are let."""
    where = places()
    with ExitStack() as stack:
        nodes = []
        for name in HOSTS:
            config = configuration(name, where)
            config["models"][0]["env"] = GATED
            nodes.append(stack.enter_context(started(name, tmp_path / name, config)))
        one, other = nodes
        until(lambda: one.get("/v1/status")["members"] and other.get("/v1/status")["members"], "they know each other")
        yield one, other
        for node in nodes:
            node.engine("m").open("save")  # a node that ends waits for it


def turn(node: Node, session: str, host: str = "") -> int:
    """One turn of the session, entered at the node: its status."""
    target = "/v1/chat/completions" + (f"?host={host}" if host else "")
    return asyncio.run(ask(node, chat("m"), path=target, headers=[("X-Session-Id", session)])).status


def settled(one: Node, other: Node, session: str) -> str:
    """A session whose last turn's replica is at `other`: a newer one would take the place of what is imported. Its
    key."""
    key = moved(one, other, session)

    def turns(node: Node, where: str) -> set[int]:
        return {held["turn"] for held in node.get(PATH)["sessions"] if held["where"] == where}

    until(lambda: one.idle("m") and turns(one, "engine") == turns(other, "replica"), "the newest is there")
    return key


def kill_engine(node: Node) -> None:
    before = node.model("m")["backends"][0]["pid"]
    psutil.Process(before).kill()

    def another() -> bool:
        backend = node.model("m")["backends"][0]
        return backend["status"] == "healthy" and backend["pid"] != before

    until(another, f"{node.name}'s engine runs again\n{node.log()}")


def cache_files(node: Node) -> list[Path]:
    """What engines have written or are to read."""
    return [file for file in (node.folder / "state" / "kv" / "engines").rglob("*") if file.is_file()]


def test_an_engine_that_dies_while_it_saves(pair: tuple[Node, Node]) -> None:
    one, _ = pair
    until(lambda: turn(one, "dies", one.name) == 200 and "saving" in one.slots("m"), "a turn is saved")
    kill_engine(one)
    one.heard("kv save failed")
    until(lambda: one.idle("m"), "its slots are free")
    assert turn(one, "dies", one.name) == 200
    assert cache_files(one) == []


def test_an_engine_that_dies_while_it_restores(pair: tuple[Node, Node]) -> None:
    """The turn itself dies with it, and is served elsewhere: nothing was said yet."""
    one, other = pair
    key = settled(one, other, "dies")
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(turn, one, "dies", other.name)
        until(lambda: "restoring" in other.slots("m"), "its cache is restored")
        kill_engine(other)
        status = waiting.result(timeout=60)
    assert status == 200
    other.heard("kv import failed", session=key)
    other.engine("m").open("restore")
    assert turn(one, "dies", other.name) == 200, "and so is the next one, by the new engine"


@pytest.mark.slow
def test_a_restore_that_hangs_is_given_up(pair: tuple[Node, Node]) -> None:
    one, other = pair
    key = settled(one, other, "hangs")
    assert turn(one, "hangs", other.name) == 200
    assert "given up" in other.heard("kv import failed", session=key)["reason"]
    assert [file for file in cache_files(other) if file.suffix == ".restore"] == []

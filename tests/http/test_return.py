"""A node without seeds that is restarted is back at once, though discovery is asked every ten minutes only."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from http_node import Node, until
from meshes import Mesh

FIRST, SECOND = "attic", "cellar"


class Pair(Mesh):
    """The second has the first as its seed, as one that was set up by a join code; the first has none."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, {FIRST: "127.0.0.31", SECOND: "127.0.0.32"})

    def config(self, name: str) -> dict[str, Any]:
        section = self.section(name, rejoin_interval="600s")
        return {"mesh": {**section, "seeds": [] if name == FIRST else section["seeds"]}, "models": []}

    def memory(self, name: str) -> Path:
        return self.folder / name / "state" / "members.json"

    def members(self, name: str) -> set[str]:
        return {member["node"] for member in self[name].get("/v1/status")["members"]}

    def met(self) -> None:
        until(lambda: self.members(FIRST) == {SECOND}, f"{FIRST} sees {SECOND}\n{self[FIRST].log()}")
        until(lambda: self.members(SECOND) == {FIRST}, f"{SECOND} sees {FIRST}\n{self[SECOND].log()}")


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    """Both run, know each other, and have written that down."""
    made = Pair(tmp_path)
    try:
        for name in (FIRST, SECOND):
            made.start(name)
        made.met()
        for name in (FIRST, SECOND):
            until(made.memory(name).exists, f"{name} remembers")
        yield made
    finally:
        made.stop()


def killed(node: Node) -> None:
    """Without a word to the others."""
    node.process.send_signal(signal.SIGKILL)
    node.process.wait()


def test_a_restart(pair: Pair) -> None:
    pair.stop(FIRST)
    pair.start(FIRST)
    pair.met()


def test_the_other_looks_for_it(pair: Pair) -> None:
    pair.stop(FIRST)
    pair.memory(FIRST).unlink()
    pair.start(FIRST)
    pair.met()
    assert pair[FIRST].events("joined") == []


def test_a_power_cut_of_both(pair: Pair) -> None:
    killed(pair[FIRST])
    killed(pair[SECOND])
    pair.stop()
    # The seed does not answer when the second starts, and is asked again in ten minutes.
    for name in (SECOND, FIRST):
        pair.start(name)
    pair.met()

"""A plugin that breaks the contract harms its own model and nobody else's."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from http_node import Node, ask, chat, model, started, until


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    config = {
        "health": {"interval": "0.3s"},
        "models": [model("good"), model("junk", "junk"), model("forks", "forks"), model("blocks", "blocks")],
    }
    folder = tmp_path_factory.mktemp("rude") / "node"
    with started("rude", folder, config, plugins="scripted,rude", healthy=False) as node:
        for name in ("good", "forks", "blocks"):
            until(lambda name=name: state(node, name) == "healthy", f"{name} is healthy", within=60)
        yield node


def state(node: Node, name: str) -> str:
    backends = node.model(name)["backends"]
    return str(backends[0]["status"]) if backends else "unknown"


def test_a_plugin_that_blocks_its_loop_holds_up_no_request(node: Node) -> None:
    mark = node.folder / "state/plugins/blocks/blocking"

    def answered_meanwhile() -> bool:
        until(mark.exists, "the plugin blocks its loop")
        for name in ("good", "blocks"):
            assert asyncio.run(ask(node, chat(name))).status == 200
        assert state(node, "good") == "healthy"
        return mark.exists()

    # A look may begin just when a block ends.
    assert any(answered_meanwhile() for _ in range(5))


def test_a_plugin_that_answers_with_junk_is_named(node: Node) -> None:
    (backend,) = node.model("junk")["backends"]
    assert backend["status"] == "starting"
    assert "engine junk" in backend["reason"]
    assert "returned dict where the contract says" in node.log()
    assert asyncio.run(ask(node, chat("good"))).status == 200


def test_a_plugin_that_forks_leaves_the_node_whole(node: Node) -> None:
    probed = node.engine("forks").probes()
    until(lambda: node.engine("forks").probes() > probed + 2, "it was forked some more times")
    for name in ("forks", "good"):
        assert asyncio.run(ask(node, chat(name))).status == 200
    assert node.process.poll() is None

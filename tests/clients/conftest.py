"""Nodes for OpenAI's own client: one with real llama-servers, one with engines that do as they are told."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from viiwork_core.testing.tiny_model import write_gguf

sys.path.insert(0, str(Path(__file__).parents[1] / "http"))
sys.path.insert(0, str(Path(__file__).parent))

from callers import EMBEDS, FAKE, QUEUE_MAX, REAL, SCRIPTED  # found by the lines above
from http_node import Node, model, started, until


@pytest.fixture(scope="session")
def shared_real_node(llama_server: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    folder = tmp_path_factory.mktemp("real")
    path = str(write_gguf(folder / "tiny.gguf"))
    both = {"path": path, "llamacpp": {"threads": 1}}
    config = {
        "models": [
            model(REAL, "llamacpp", **both),
            model(EMBEDS, "llamacpp", **both, args=["--embeddings", "--pooling", "mean"]),
        ],
    }
    with started("one", folder / "one", config, plugins="llamacpp") as node:
        yield node


@pytest.fixture
def real_node(shared_real_node: Node) -> Iterator[Node]:
    """A node with real engines, all slots free before and after."""
    yield shared_real_node
    for name in (REAL, EMBEDS):
        until(lambda name=name: shared_real_node.idle(name), f"all slots of {name} come free again", 10)  # type: ignore[misc]  # mypy cannot type a lambda's default


@pytest.fixture(scope="session")
def shared_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    config = {
        "routing": {"queue_max": QUEUE_MAX, "queue_timeout": "60s"},
        "health": {"interval": "0.5s"},
        "api": {"port": 0, "max_body": "2MiB"},
        "models": [model(SCRIPTED), model(FAKE, "fake", fake={"token_seconds": 0.01})],
    }
    with started("one", tmp_path_factory.mktemp("told") / "one", config) as node:
        yield node


@pytest.fixture
def node(shared_node: Node) -> Iterator[Node]:
    """A node with engines that are told what to do, all slots free before and after."""
    yield shared_node
    for name in (SCRIPTED, FAKE):
        until(lambda name=name: shared_node.idle(name), f"all slots of {name} come free again", 10)  # type: ignore[misc]  # mypy cannot type a lambda's default


@pytest.fixture(scope="session")
def narrow_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A node with one slot and no queue: who does not fit is refused at once."""
    config = {"routing": {"queue_max": 0}, "models": [model(SCRIPTED, parallel=1)]}
    with started("narrow", tmp_path_factory.mktemp("narrow") / "one", config) as node:
        yield node

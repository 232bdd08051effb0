"""A node with scripted engines of every kind, shared by all tests here that need nothing special of it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from http_node import QUEUE_MAX, Node, model, started, until  # found by the line above

KINDS = ("scripted", "scripted-plain", "scripted-done", "scripted-usage", "scripted-draining")


@pytest.fixture(scope="session")
def shared_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    config = {
        "routing": {"queue_timeout": "1s", "queue_max": QUEUE_MAX},
        "health": {"interval": "0.5s"},
        "api": {"port": 0, "max_body": "2MiB"},
        "models": [model(kind, kind) for kind in KINDS],
    }
    with started("one", tmp_path_factory.mktemp("node") / "one", config) as node:
        yield node


@pytest.fixture
def node(shared_node: Node) -> Iterator[Node]:
    """The node, with all slots free before and after."""
    yield shared_node
    for kind in KINDS:
        until(lambda kind=kind: shared_node.idle(kind), f"all slots of {kind} come free again", 5)  # type: ignore[misc]  # mypy cannot type a lambda's default

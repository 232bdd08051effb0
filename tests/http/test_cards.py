"""A whole node on a machine with cards, as far as the vendor's tool is concerned: is a backend on its own?"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from http_node import Node, model, started, until

TOOL = """#!/bin/sh
case "$*" in
*-L*) echo "GPU 0: Card (UUID: GPU-a)"; echo "GPU 1: Card (UUID: GPU-b)" ;;
*query-compute-apps*)
    for place in /proc/[0-9]*; do
        if tr '\\0' ' ' <"$place/cmdline" | grep -q scripted_engine.py; then
            echo "${place#/proc/}, $(cat CARD)"
        fi
    done ;;
*index,uuid,name*) echo "0, GPU-a, Card, 8192, 1, 0, 30.0"; echo "1, GPU-b, Card, 8192, 1, 0, 30.0" ;;
*index,uuid*) echo "0, GPU-a"; echo "1, GPU-b" ;;
esac 2>/dev/null
"""


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="the tool's stand-in reads /proc")
def test_a_backend_on_a_neighbours_card_is_ended_and_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    card, tools = tmp_path / "card", tmp_path / "tools"
    tools.mkdir()
    (tools / "nvidia-smi").write_text(TOOL.replace("CARD", str(card)))
    (tools / "nvidia-smi").chmod(0o755)
    card.write_text("GPU-b")
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    config = {
        "gpu": {"vendor": "nvidia"},
        "health": {"max_respawns": 9, "interval": "0.3s"},
        "models": [model("m", "scripted", gpus=[0])],
    }
    with started("cards", tmp_path / "node", config, healthy=False) as node:
        wrong = node.heard("a backend is started again", backend="m/0")
        assert "it computes on card 1, and its own are 0" in wrong["reason"]
        card.write_text("GPU-a")
        until(node.ready, "the backend is back", within=60)
        until(lambda: left_alone(node), "it stays", within=60)


def left_alone(node: Node) -> bool:
    """Whether it is ready, and one and the same engine has been for some probes."""
    with suppress(OSError, LookupError, psutil.Error):
        return node.ready() and node.engine("m").probes() > 10
    return False

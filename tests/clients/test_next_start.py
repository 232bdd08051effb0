"""A node that is killed in the middle of its work, and its next start in the same folder."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import openai
import psutil
import pytest
from callers import REAL, client
from http_node import Node, model, started, until

from viiwork_core.testing.tiny_model import write_gguf

ENDLESS = 12_000
"""Tokens that take longer to write than this test, and fit into a slot."""


def alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def chat(ai: openai.OpenAI, **more: Any) -> Any:
    return ai.chat.completions.create(model=REAL, messages=[{"role": "user", "content": "Hello"}], **more)


def killed_while_it_streams(node: Node) -> list[psutil.Process]:
    """What the node had started."""
    children = psutil.Process(node.process.pid).children(recursive=True)
    assert any("llama-server" in child.cmdline()[0] for child in children)
    with client(node) as ai:
        stream = chat(ai, max_tokens=ENDLESS, stream=True, extra_body={"ignore_eos": True})
        assert next(stream).choices
        os.kill(node.process.pid, signal.SIGKILL)
        node.process.wait()
        with pytest.raises(openai.APIConnectionError):
            list(stream)
    return children


def test_a_killed_node_leaves_nothing_and_starts_again(llama_server: None, tmp_path: Path) -> None:
    entry = model(
        REAL,
        "llamacpp",
        path=str(write_gguf(tmp_path / "tiny.gguf")),
        context=16384,
        llamacpp={"threads": 1},
    )
    folder = tmp_path / "node"
    with started("one", folder, {"models": [entry]}, plugins="llamacpp") as node:
        children = killed_while_it_streams(node)
        until(lambda: not any(map(alive, children)), "all that the killed node had started is gone", within=5)
        assert (folder / "state" / "node.json").exists(), "nobody was there to remove it"
    with started("one", folder, {"models": [entry]}, plugins="llamacpp") as node, client(node) as ai:
        assert chat(ai, max_tokens=8).choices[0].message.content
        assert node.model(REAL)["backends"][0]["pid"] not in {one.pid for one in children}
    assert not (folder / "state" / "node.json").exists()

"""A policy that breaks the contract costs nobody an answer, and is named."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from http_node import ask, chat, model, started


@pytest.mark.parametrize(
    ("policy", "by", "strike"),
    [
        ("raises", "least_busy", "policy raises: rank failed: RuntimeError: no idea"),
        ("stranger", "least_busy", "policy stranger: rank failed: PluginError: the ranking names a place that is no"),
        # Late is still right: a ranking that is there is used.
        ("late", "late", "policy late: rank took 2"),
    ],
)
def test_the_request_is_served_and_the_strike_is_told(tmp_path: Path, policy: str, by: str, strike: str) -> None:
    config = {"routing": {"policy": policy}, "models": [model("m")]}
    with started("rude", tmp_path / "node", config, plugins="scripted,rude_policy") as node:
        answer = asyncio.run(ask(node, chat("m"), headers=[("X-Request-Id", "one")]))
        assert answer.status == 200
        told = node.heard("policy strike")
        assert told["reason"].startswith(strike)
        (choice,) = node.get("/v1/why/one")["choices"]
        assert (choice["policy"], choice["chosen"]) == (by, "rude")

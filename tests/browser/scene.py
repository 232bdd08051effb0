"""What is looked at: two nodes, four models, two aliases, and names that would be a page's undoing."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from http_node import CHAT, SECRET, Node, ask, chat, model, script, until  # of the tests over HTTP

MARKUP = "<img/src=x/onerror=window.taken=1><svg/onload=window.taken=2>\"onmouseover='window.taken=3'"
"""A name of a model: anything without white space."""

SHARED, SMALL, OWN = "qwen3-8b", "smollm2", "phi-4"

# Two cards whose figures change each minute.
TOOL = """#!/bin/sh
s=$(date +%S | sed 's/^0//')
case "$*" in
*-L*) echo "GPU 0: NVIDIA RTX 3090 (UUID: GPU-a)"; echo "GPU 1: NVIDIA RTX 3090 (UUID: GPU-b)" ;;
*query-compute-apps*) ;;
*index,uuid,name*)
    echo "0, GPU-a, NVIDIA RTX 3090, 24576, $((9000 + s)), $s, $((100 + s)).0"
    echo "1, GPU-b, NVIDIA RTX 3090, 24576, 1, 0, 30.0" ;;
*index,uuid*) echo "0, GPU-a"; echo "1, GPU-b" ;;
esac 2>/dev/null
"""


def free_port(host: str) -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port


def configuration(ports: Mapping[str, int]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Of both nodes."""
    shared = model(SHARED, "fake", fake={"token_seconds": 0.03}, kv_share={"group": "house", "min_tokens": 1})
    first = [shared, model(MARKUP, "scripted"), model(OWN, "scripted")]
    second = [shared, model(SMALL, "scripted", parallel=1)]
    both = zip(ports.items(), (first, second), strict=True)
    one, two = (_node(host, port, ports, models) for (host, port), models in both)
    return {**one, "gpu": {"vendor": "nvidia"}}, {**two, "gpu": {"vendor": "none"}}


def _node(host: str, port: int, ports: Mapping[str, int], models: list[dict[str, Any]]) -> dict[str, Any]:
    mesh = {"network": "seeds", "advertise": host, "bind_port": port, "capacity_poll": "200ms", "rejoin_interval": "1s"}
    seeds = [f"{other}:{number}" for other, number in ports.items() if other != host]
    return {
        "mesh": {**mesh, "seeds": seeds},
        "health": {"interval": "0.5s"},
        "routing": {"policy": "least_busy", "queue_timeout": "20s"},
        "models": models,
    }


@dataclass
class Scene:
    """Both nodes."""

    attic: Node
    cellar: Node

    @property
    def base(self) -> str:
        return f"http://{self.attic.host}:{self.attic.port}"

    def settled(self) -> bool:
        nodes = (self.attic, self.cellar)
        return all(len(node.get("/v1/fleet/capacity")["models"]) == 4 and node.ready() for node in nodes)

    def name_things(self) -> None:
        """Two aliases, one of them for what nobody has."""
        for words in (("coder", SHARED, "--fallback", SMALL), ("lost", f"{MARKUP}gone", "--force")):
            command = [Path(sys.executable).with_name("viiwork"), "alias", "set", *words]
            command += ["--config", self.attic.folder / "viiwork.yaml"]
            environ = {"PATH": os.environ["PATH"], "HOME": str(self.attic.folder), "VIIWORK_MESH_SECRET": SECRET}
            done = subprocess.run(
                [str(one) for one in command],
                env={**environ, "VIIWORK_PLUGINS": ""},
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, done.stderr

    @contextmanager
    def under_way(self, name: str, rid: str, *, at: Node, entry: Node, count: int = 1) -> Iterator[None]:
        """Requests that run at a node of scripted engines for as long as the block."""
        steps = script(("stream",), ("chunk", b"data: {}\n\n"), ("gate", rid), ("chunk", b"data: [DONE]\n\n"), ("end",))
        body = chat(name, steps, stream=True)
        asking = [
            threading.Thread(target=lambda i=i: asyncio.run(ask(entry, body, headers=[("X-Request-Id", f"{rid}-{i}")])))  # type: ignore[misc]  # mypy cannot type a lambda's default
            for i in range(count)
        ]
        for one in asking:
            one.start()
        try:
            yield
        finally:
            at.engine(name).open(rid)
            for one in asking:
                one.join()

    def turn(self, words: list[str], *, entry: Node, host: str, session: str) -> str:
        """A turn of a conversation, on a node; its answer."""
        roles = ("user", "assistant")
        messages = [{"role": roles[i % 2], "content": text} for i, text in enumerate(words)]
        connection = HTTPConnection(entry.host, entry.port, timeout=60)
        try:
            body = json.dumps({"model": SHARED, "messages": messages, "max_tokens": 12})
            connection.request("POST", f"{CHAT}?host={host}", body, {"X-Session-Id": session})
            answer = json.loads(connection.getresponse().read())
        finally:
            connection.close()
        return str(answer["choices"][0]["message"]["content"])

    def move_a_session(self, session: str) -> None:
        """A conversation that begins on one node and goes on at the other, with its cache."""
        words = ["Tell me of the lighthouse."]
        for host in ("attic", "attic", "cellar"):
            sent = self.sent()
            words.append(self.turn(words, entry=self.attic, host=host, session=session))
            words.append("And then?")
            if host == "attic" and len(words) > 3:
                until(lambda sent=sent: self.sent() > sent, "its cache is sent")  # type: ignore[misc]  # mypy cannot type a lambda's default

    def sent(self) -> int:
        return int(self.attic.get("/v1/status")["kv_share"]["sent"])

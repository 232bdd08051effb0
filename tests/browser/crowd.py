"""Streams that somebody else has made: a mesh of many nodes, with names of every kind, and caches on their way."""

from __future__ import annotations

import json
from typing import Any

from looking import Screen
from scene import MARKUP

NODES = 50
LONG = "some/really-long-model-name-70B-Instruct-Q4_K_M-".ljust(120, "x")
STATES = ("alive", "alive", "alive", "suspect", "dead")
HAS = "([where, text]) => document.querySelector(where)?.innerText.includes(text)"
WIDER = """() => [...document.querySelectorAll('td, tbody th, .scroll, dd')]
    .filter((one) => one.clientWidth && one.scrollWidth > one.clientWidth + 1)
    .map((one) => `${one.scrollWidth} > ${one.clientWidth}: ${one.innerText.slice(0, 60)}`)"""
"""Elements whose content is wider than they are."""


def named(number: int, nodes: int = NODES) -> str:
    return f"node-{number % nodes:02d}-a-machine-with-a-very-long-name.example"


def member(number: int, nodes: int = NODES) -> dict[str, Any]:
    """One node: three models, up to eight cards, caches that it has sent to another."""
    name, node_id = named(number), f"id-{number}"
    models = [
        {"name": each, "engine": "llamacpp", "slots": 4, "busy": 1}
        | {"queued": number % 3, "ctx": 131_072, "healthy_backends": one, "backends": 2}
        for one, each in enumerate((LONG, MARKUP, f"every-{number % 10}th"))
    ]
    card = {"name": "NVIDIA H200 NVL", "util": 50, "vram_used_mb": 90_000, "vram_total_mb": 143_000, "power_w": 433.3}
    to = named(number + 7, nodes)
    link = {"node": to, "sent": 9 + number, "failed": 1, "sent_bytes": 10**9, "under_way": number % 2}
    kv = {"sent": 9 + number, "sent_bytes": 10**9, "links": [link], "imports": [{"model": "m", "warm": 9, "cold": 1}]}
    told = {"gpus": [{"index": one, **card} for one in range(number % 9)], "models": models, "kv_share": kv}
    memory = {"host_mem_total_mb": 515_000, "host_mem_used_mb": 123_456}
    whose = {"node": name, "node_id": node_id, "ver": "0.1.0"}
    return {
        **whose,
        "addr": f"10.0.0.{number}:8086",
        "state": STATES[number % len(STATES)],
        "draining": number % 10 == 1,
        "models": models,
        "status": whose | told | memory,
    }


def stream(*events: tuple[str, dict[str, Any]]) -> str:
    """Server-sent events, of a stream that ends with them and begins again at once."""
    return "retry: 100\n\n" + "".join(f"event: {name}\ndata: {json.dumps(data)}\n\n" for name, data in events)


def crowd(nodes: int = NODES) -> str:
    """The stream of a mesh of so many nodes, with a request under way at each."""
    members = [member(one, nodes) for one in range(nodes)]
    cluster = {"view": named(0), "mesh": "secured", "members": members, "models": []}
    requests = (
        {"t": 10**9, "n": one + 1, "type": "request", "node_id": f"id-{one}", "hostname": named(one), "rid": f"r-{one}"}
        | {"message": f"{LONG} → peer {named(one + 7, nodes)}"}
        for one in range(nodes)
    )
    return stream(("cluster", cluster), ("aliases", {"aliases": []}), *(("activity", one) for one in requests))


def hears(screen: Screen, body: str) -> None:
    """The page's next streams are this."""
    screen.page.route("**/v1/*/stream", lambda route: route.fulfill(content_type="text/event-stream", body=body))


def told(screen: Screen, body: str, path: str = "/mesh") -> Any:
    """The page, with a stream that somebody else has made."""
    hears(screen, body)
    return screen.go(path)

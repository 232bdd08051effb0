"""Keys of a node under test: written as the viiwork command does, and shown as clients do."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from typing import Any

import commands
import psutil
from http_node import SECRET, Answer, EngineEnd, Node, ask, chat

from viiwork_core.cli.operator import Operator
from viiwork_core.config.load import load_config
from viiwork_core.security.keys import digest_of, hash_text, new_token

PATH = "/v1/keys"


def operator(node: Node) -> Operator:
    """Who operates the node, on its machine."""
    return Operator.here(load_config(node.folder / "viiwork.yaml", os.environ))


def new(node: Node, name: str, **limits: object) -> str:
    """A new key's token."""
    token = new_token()
    operator(node).ask("PUT", f"{PATH}/{name}", {"hash": hash_text(digest_of(token)), **limits})
    return token


def revoke(node: Node, name: str, *, opens: bool = False) -> None:
    """A key counts no more."""
    operator(node).ask("DELETE", f"{PATH}/{name}", {"open": opens})


def listed(node: Node) -> dict[str, dict[str, Any]]:
    """All keys by name."""
    return {one["name"]: one for one in operator(node).ask("GET", PATH, signed=True)["keys"]}


def command(node: Node, *args: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """`viiwork key`, with the mesh's secret unless `environ` says otherwise."""
    run = commands.viiwork if args[0] == "entry" else commands.command
    return run(node, "key", *args, **{"VIIWORK_MESH_SECRET": SECRET, **environ})


def said(node: Node, *args: str) -> str:
    """What `viiwork key` prints when it succeeds."""
    done = command(node, *args)
    assert done.returncode == 0, done.stderr
    return done.stdout


def shown(token: str) -> tuple[str, str]:
    """The header that shows a key."""
    return "Authorization", f"Bearer {token}"


def asked(node: Node, token: str | None, model: str = "m", **more: Any) -> Answer:
    """A chat, and its whole answer."""
    return asyncio.run(ask(node, chat(model, **more), headers=[] if token is None else [shown(token)]))


def outcome(answer: Answer) -> tuple[int, str]:
    """The status, and the code of an error."""
    return answer.status, "" if answer.status == 200 else answer.error["code"]


def read(node: Node, path: str, token: str) -> Answer:
    """What a path answers to a key."""
    return asyncio.run(ask(node, b"", path=path, method="GET", headers=[shown(token)]))


def status(node: Node, name: str, token: str) -> dict[str, Any]:
    """A model's entry of /v1/status, which asks for a key."""
    found: dict[str, Any] = next(
        one for one in json.loads(read(node, "/v1/status", token).body)["models"] if one["name"] == name
    )
    return found


def engine(node: Node, name: str, token: str) -> EngineEnd:
    """A model's engine."""
    process = psutil.Process(status(node, name, token)["backends"][0]["pid"])
    listening = [one for one in process.net_connections("tcp") if one.status == psutil.CONN_LISTEN]
    return EngineEnd(listening[0].laddr.port)

"""A node's identity file: how other programs on this machine find the node that runs from a state folder."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec


def new_node_id() -> str:
    """Differs in every process, so that a restarted node is told from the run before."""
    return f"viiwork-{secrets.token_hex(8)}"


@contextmanager
def identity_file(state_dir: Path, *, node: str, node_id: str, api: str, version: str) -> Iterator[None]:
    """state_dir/node.json while the node runs: pid, node, node_id, api, version. Removed on a clean stop."""
    path = state_dir / "node.json"
    body = {"pid": os.getpid(), "node": node, "node_id": node_id, "api": api, "version": version}
    fresh = path.with_suffix(".new")
    fresh.write_bytes(msgspec.json.encode(body) + b"\n")
    fresh.replace(path)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)

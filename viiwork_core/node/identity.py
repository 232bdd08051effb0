"""A node's identity file: how other programs on this machine find the node that runs from a state folder."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version

import msgspec

from viiwork_core.atomic_file import write_atomically
from viiwork_core.config.running import FILE
from viiwork_core.config.schema import Config


def new_node_id() -> str:
    """Unique to each process, so that a restarted node can be told from the run before."""
    return f"viiwork-{secrets.token_hex(8)}"


@contextmanager
def identity_file(config: Config, node_id: str, api: str) -> Iterator[None]:
    """state_dir/node.json while the node runs: pid, node, node_id, api, version. Removed on a clean stop."""
    path = config.node.state_dir / FILE
    names = {"node": config.node.name, "node_id": node_id}
    body = {"pid": os.getpid(), **names, "api": api, "version": version("viiwork")}
    # For other users too: it holds no secret, and their commands look here for the node.
    write_atomically(path, msgspec.json.encode(body) + b"\n", mode=0o666, settled=False)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)

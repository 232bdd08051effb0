"""A program of somebody's own that serves a node: `CONFIG=FILE python asgi_program.py PORT uvicorn|granian`."""

from __future__ import annotations

import os
import sys

import uvicorn
from granian import Granian  # type: ignore[attr-defined]  # it exports it without saying so
from granian.constants import Interfaces, Loops

from viiwork_core.node.asgi import app_from_config
from viiwork_core.web import Application


def node() -> Application:
    """What a server calls."""
    return app_from_config(os.environ["CONFIG"])


if __name__ == "__main__":
    port, server = int(sys.argv[1]), sys.argv[2]
    if server == "uvicorn":
        uvicorn.run(node(), host="127.0.0.1", port=port, timeout_graceful_shutdown=5)
    else:
        Granian(
            "asgi_program:node",
            factory=True,
            address="127.0.0.1",
            port=port,
            interface=Interfaces.ASGI,
            loop=Loops.uvloop,
            websockets=False,
            workers_kill_timeout=10,
        ).serve()

"""A program of somebody's own that serves a node with uvicorn: `python asgi_program.py CONFIG PORT`."""

from __future__ import annotations

import sys

import uvicorn

from viiwork_core.node.asgi import app_from_config

if __name__ == "__main__":
    uvicorn.run(app_from_config(sys.argv[1]), host="127.0.0.1", port=int(sys.argv[2]), timeout_graceful_shutdown=5)

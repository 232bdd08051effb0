"""A node for any ASGI server: `uvicorn --factory viiwork_core.node.asgi:app_from_config --port 8086`."""

from __future__ import annotations

import os
from pathlib import Path

from viiwork_core.node.addresses import served_elsewhere
from viiwork_core.node.opening import open_node
from viiwork_core.registry.entry_points import load_plugins
from viiwork_core.registry.options import resolve
from viiwork_core.registry.reading import read_config
from viiwork_core.web import Application, create_app


def app_from_config(path: str | Path | None = None) -> Application:
    """The node of a configuration, None: in the usual places. It opens and closes with the server's lifespan.

    The server has one process and listens on `api.port`, on loopback and, in a mesh, on the mesh's address. What only
    `viiwork serve` does is the server's own affair: the limit of connections, the deadline for half a request's head, a
    reload at SIGHUP, logs, and the end of activity streams before the server waits for its connections (uvicorn:
    `--timeout-graceful-shutdown`). Raises ConfigError.
    """
    registry = load_plugins(os.environ)
    config = read_config(None if path is None else Path(path), os.environ, registry)
    resolved = resolve(config, registry)
    places = served_elsewhere(config, resolved)
    return create_app(lambda: open_node(config, resolved, places, os.environ))

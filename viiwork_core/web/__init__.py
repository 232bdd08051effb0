"""The HTTP API around the hot path. `create_app` makes an ASGI application of a node; any ASGI server may run it."""

from viiwork_core.web.app import Application, OpenNode, create_app

__all__ = ["Application", "OpenNode", "create_app"]

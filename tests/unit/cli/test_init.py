"""What `viiwork init` says of a node that serves."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from viiwork_core.cli.init import _next_steps, _url_elsewhere
from viiwork_core.config.schema import Config
from viiwork_core.setup.locations import Locations
from viiwork_core.setup.process import BackgroundProcess
from viiwork_core.setup.service import Subject


class Status(BaseHTTPRequestHandler):
    """A node, as far as it tells where it is reached."""

    def do_GET(self) -> None:
        body = json.dumps({"addr": "192.168.1.7", "api_port": 8086}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        """Not among the tests' output."""


@pytest.fixture
def state(tmp_path: Path) -> Iterator[Path]:
    """The state folder of a node that runs and listens on loopback too."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Status) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        node = {"api": f"http://127.0.0.1:{server.server_address[1]}", "node_id": "1"}
        (tmp_path / "node.json").write_text(json.dumps(node))
        yield tmp_path
        server.shutdown()
        thread.join()


def config(state: Path, network: str = "seeds", host: str | None = None) -> Config:
    mesh = {"network": network, "seeds": ["192.168.1.8:7946"] if network == "seeds" else []}
    return Config.model_validate({"node": {"state_dir": str(state)}, "mesh": mesh, "api": {"host": host}})


def test_other_machines_use_another_address(state: Path) -> None:
    subject = Subject(Locations.here({}, base=state), state / "viiwork")
    told = dict(_next_steps(BackgroundProcess(subject), config(state)))
    assert told["On other machines:"] == "http://192.168.1.7:8086/v1  http://192.168.1.7:8086/"


@pytest.mark.parametrize(
    ("network", "host", "url"),
    [
        ("seeds", None, "http://192.168.1.7:8086"),
        ("seeds", "0.0.0.0", "http://192.168.1.7:8086"),
        ("seeds", "127.0.0.1", None),
        ("none", None, None),
    ],
)
def test_where_other_machines_find_the_api(state: Path, network: str, host: str | None, url: str | None) -> None:
    assert _url_elsewhere(config(state, network, host)) == url


def test_a_node_that_cannot_be_asked(tmp_path: Path) -> None:
    assert _url_elsewhere(config(tmp_path)) is None

"""viiwork key, where the node fails after it has made the key; and what a shell may hold for one."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from viiwork_core.cli import main
from viiwork_core.cli.operator import API_KEY, credentials
from viiwork_core.errors import ConfigError
from viiwork_core.security.keys import fault, new_token

MADE = {"name": "alice", "weight": 1, "members": {"alive": 1, "have": 1, "missing": []}}


class _Failing(BaseHTTPRequestHandler):
    """Makes a key, and says nothing of it."""

    def do_GET(self) -> None:
        status = self.path == "/v1/status"
        self._answer(200 if status else 500, {"node_id": "x"} if status else {"error": {"message": "it broke"}})

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self._answer(200, {"name": "alice", "changed": True, "key": MADE})

    def _answer(self, status: int, body: object) -> None:
        raw = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def log_request(self, code: object = "-", size: object = "-") -> None:
        """Nothing."""


@contextmanager
def failing() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), _Failing) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def key(folder: Path, *args: str, **environ: str) -> Result:
    names = {"HOME": str(folder), "VIIWORK_PLUGINS": "", "VIIWORK_MESH_SECRET": None, API_KEY: None, **environ}
    return CliRunner(env=names).invoke(main.cli, ["key", *args], prog_name="viiwork")


@pytest.mark.parametrize("as_json", [False, True])
def test_a_key_that_was_made_is_printed_whatever_fails_after_that(tmp_path: Path, as_json: bool) -> None:
    with failing() as api:
        done = key(tmp_path, "new", "alice", "--node", api, *(["--json"] if as_json else []))
    assert done.exit_code != 0
    token = json.loads(done.stdout)["token"] if as_json else done.stdout.strip()
    assert fault(token) is None


@pytest.mark.parametrize("form", ["ключ", "vwk_secret\nx: y", "vwk_secret", "Bearer TOKEN", "TOKEN-"])
def test_what_is_no_key_is_neither_sent_nor_repeated(monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    token = new_token()
    value = token[:-1] if form == "TOKEN-" else form.replace("TOKEN", token)
    monkeypatch.setenv(API_KEY, value)
    with pytest.raises(ConfigError) as caught:
        credentials(None)
    assert API_KEY in caught.value.message
    assert not any(part in f"{caught.value.message} {caught.value.remedy}" for part in ("secret", value))


def test_a_key_is_shown_without_what_surrounds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    token = new_token()
    monkeypatch.setenv(API_KEY, f" {token}\n")
    assert credentials(None) == [("Authorization", f"Bearer {token}")]

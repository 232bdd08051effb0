"""HTTP: mlx_lm's routes with a name, seats and a watched client, and the routes that viiwork adds.

    GET  /health              200 {"status": "ok", "mlx_lm": version} once one token was generated, before it 503
                              {"status": "loading", ...}
    GET  /slots               {"slots", "busy", "waiting", "context": tokens or null}
    GET  /metrics             counts and gauges, as Prometheus reads them
    GET  /kv                  {"sessions": [{"session", "tokens"}]}, those of which something is held
    GET  /kv?session=KEY      {"session", "tokens"}
    POST /kv/save, /kv/restore {"session": KEY, "filename": NAME} -> {"filename", "tokens", "bytes"}

Errors are {"error": "words"}, as mlx_lm's.
"""

# mypy: allow-untyped-calls, allow-subclassing-any

from __future__ import annotations

import io
import json
import logging
import re
import time
from typing import Any
from urllib.parse import parse_qs, urlsplit

from mlx_lm import __version__ as mlx_lm_version
from mlx_lm.server import APIHandler, CompletionRequest

from viiwork_mlx.server.backend import Backend
from viiwork_mlx.server.body import BadRequest, read_body
from viiwork_mlx.server.generation import KvRefused, Turn
from viiwork_mlx.server.seats import Client

SESSION_HEADER = "X-Viiwork-Session"
SESSION = re.compile(r"[A-Za-z0-9._-]{1,128}")
CONTROL_BODY_LIMIT = 65536
BAD_REQUEST = 400
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
ABSENT = "default_model"
"""What mlx_lm puts in for a field that the request leaves out."""


class Handler(APIHandler):
    """One request: the server speaks HTTP/1.0."""

    stream_options: Any
    _turn: Turn | None = None

    def __init__(self, backend: Backend, *connection: Any) -> None:
        """Answers the request before it returns: http.server's handlers do all in their constructor."""
        self.backend = backend
        super().__init__(backend.generation, *connection, system_fingerprint=backend.fingerprint)

    def do_GET(self) -> None:  # noqa: N802 - the name is http.server's
        url = urlsplit(self.path)
        if url.path == "/slots":
            self._reply(200, self._slots())
        elif url.path == "/metrics":
            self._send(200, METRICS_TYPE, self.backend.generation.figures.text(self.backend.gauges()).encode())
        elif url.path == "/kv":
            self._answer(lambda: self._held(parse_qs(url.query, keep_blank_values=True).get("session")))
        else:
            super().do_GET()

    def do_POST(self) -> None:  # noqa: N802 - the same
        if urlsplit(self.path).path in ("/kv/save", "/kv/restore"):
            self._answer(self._transfer)
        elif (raw := self._request_body()) is not None:
            self.rfile = io.BytesIO(raw)  # from which mlx_lm reads it
            super().do_POST()

    def _request_body(self) -> bytes | None:
        """The body for mlx_lm; None when it was answered with what is wrong with it."""
        length = self.headers.get("Content-Length", "")
        if not length.isascii() or not length.isdecimal():
            self._reply(411, {"error": "Content-Length header is required"})
            return None
        try:
            raw = read_body(self.rfile.read(int(length)))
        except BadRequest as error:
            self._refused()
            self._reply(400, {"error": str(error)})
            return None
        self.headers.replace_header("Content-Length", str(len(raw)))
        return raw

    def handle_health_check(self) -> None:
        ready = self.backend.model.ready.is_set()
        self._reply(200 if ready else 503, {"status": "ok" if ready else "loading", "mlx_lm": mlx_lm_version})

    def handle_models_request(self) -> None:
        """mlx_lm lists folders of this machine, and whatever the download cache has."""
        model = {"id": self.backend.model_name, "object": "model", "created": self.created}
        self._reply(200, {"object": "list", "data": [model]})

    def handle_completion(self, request: CompletionRequest, stop_words: list[str]) -> None:
        """Called with the body read and its fields checked."""
        if (refusal := self._refusal()) is not None:
            self._refused()
            self._reply(*refusal)
            return
        self.requested_model = self.backend.model_name
        if self.stream_options is not None:  # mlx_lm wants the field in it, at the end of the answer
            self.stream_options = {"include_usage": self.stream_options.get("include_usage", False)}
        # How far to guess is the operator's to say.
        self.num_draft_tokens = self.backend.model.cli_args.num_draft_tokens
        key = self.headers.get(SESSION_HEADER)
        self._turn = turn = Turn(**vars(request), client=self._client(), session=key)
        try:
            with self.backend.seats.taken(turn.client):
                self._generate(turn, stop_words)
        except ConnectionError:
            turn.outcome = "left"
            logging.info("the client left before the end of its answer")
        finally:
            self.backend.generation.figures.add("refused" if turn.status == BAD_REQUEST else turn.outcome)

    def _generate(self, turn: Turn, stop_words: list[str]) -> None:
        """Leave only when the generation thread has let go of the turn: its seat is free then."""
        try:
            super().handle_completion(turn, stop_words)
        except ConnectionError:
            turn.stop()
            self.backend.generation.settle()
            raise
        finally:
            turn.stop()

    def _refusal(self) -> tuple[int, dict[str, object]] | None:
        """Why this request is not for this server; None when it is."""
        if (name := self.body.get("model", self.backend.model_name)) != self.backend.model_name:
            return 404, {"error": f"the model {str(name)[:100]!r} is not served here, {self.backend.model_name!r} is"}
        if self.adapter is not None or self.requested_draft_model != ABSENT:
            return 400, {"error": "adapters and draft_model cannot be chosen by a request"}
        if not SESSION.fullmatch(self.headers.get(SESSION_HEADER, "none")):
            return 400, {"error": f"{SESSION_HEADER} must be 1 to 128 of A-Z a-z 0-9 . _ -"}
        return None

    def _slots(self) -> dict[str, object]:
        seats = self.backend.seats
        context = self.backend.context
        return {"slots": seats.count, "busy": seats.busy, "waiting": seats.waiting, "context": context}

    def _held(self, keys: list[str] | None) -> dict[str, object]:
        if keys is None:
            return self.backend.kv().sessions(self._client())
        return self.backend.kv().holds(_session(keys[0]), self._client())

    def _transfer(self) -> dict[str, object]:
        body = self._control_body()
        session, name = _session(body.get("session", "")), body.get("filename", "")
        kv = self.backend.kv()
        kind = self.path.rpartition("/")[2]
        started = time.monotonic()
        done = (kv.save if kind == "save" else kv.restore)(session, name, self._client())
        figures = self.backend.generation.figures
        figures.add(f"{kind}_transfers")
        figures.add(f"{kind}_transfer_bytes", done["bytes"])
        figures.add(f"{kind}_transfer_seconds", time.monotonic() - started)
        return done

    def _control_body(self) -> dict[str, str]:
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > CONTROL_BODY_LIMIT:
            raise KvRefused(400, f"Content-Length must be at most {CONTROL_BODY_LIMIT}")
        try:
            body = json.loads(self.rfile.read(int(length)))
        except ValueError as error:
            raise KvRefused(400, "the body is not JSON") from error
        if not isinstance(body, dict) or not all(isinstance(value, str) for value in body.values()):
            raise KvRefused(400, 'the body must be {"session": "...", "filename": "..."}')
        return body

    def _answer(self, act: Any) -> None:
        try:
            self._reply(200, act())
        except KvRefused as error:
            self._reply(error.status, {"error": str(error)})
        except ConnectionError:
            logging.info("the client left before its cache file was done")
        except OSError as error:
            self._reply(507, {"error": f"the cache file could not be written or read: {error.strerror}"})

    def _client(self) -> Client:
        return Client(self.connection)

    def _refused(self) -> None:
        self.backend.generation.figures.add("refused")

    def _set_completion_headers(self, status_code: int = 200) -> None:
        if self._turn is not None and self._turn.status is not None:
            status_code = self._turn.status
        super()._set_completion_headers(status_code)

    def _reply(self, status: int, body: dict[str, object]) -> None:
        self._send(status, "application/json", json.dumps(body).encode())

    def _send(self, status: int, kind: str, content: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is http.server's
        logging.info(format, *args)


def _session(key: str) -> str:
    if not SESSION.fullmatch(key):
        raise KvRefused(400, "session must be 1 to 128 of A-Z a-z 0-9 . _ -")
    return key

"""HTTP: mlx_lm's routes with a name, seats and a watched client, and the routes that viiwork adds.

    GET  /health              200 {"status": "ok"} once one token was generated, 503 {"status": "loading"} before
    GET  /slots               {"slots", "busy", "waiting", "context": tokens or null}
    GET  /kv?session=KEY      {"session", "tokens"}
    POST /kv/save, /kv/restore {"session": KEY, "filename": NAME} -> {"filename", "tokens", "bytes"}

Errors are {"error": "words"}, as mlx_lm's.
"""

# mypy: allow-untyped-calls, allow-subclassing-any

from __future__ import annotations

import json
import logging
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

from mlx_lm.server import APIHandler, CompletionRequest

from viiwork_mlx.server.generation import KvRefused, Turn
from viiwork_mlx.server.seats import Client

if TYPE_CHECKING:
    from viiwork_mlx.server.listener import Listener

SESSION_HEADER = "X-Viiwork-Session"
SESSION = re.compile(r"[A-Za-z0-9._-]{1,128}")
CONTROL_BODY_LIMIT = 65536
ABSENT = "default_model"
"""What mlx_lm puts in for a field that the request leaves out."""


class Handler(APIHandler):
    """One request: the server speaks HTTP/1.0."""

    server: Listener

    def do_GET(self) -> None:  # noqa: N802 - the name is http.server's
        url = urlsplit(self.path)
        if url.path == "/slots":
            self._reply(200, self._slots())
        elif url.path == "/kv":
            keys = parse_qs(url.query).get("session", [""])
            self._answer(lambda: self.server.kv().holds(_session(keys[0]), self._client()))
        else:
            super().do_GET()

    def do_POST(self) -> None:  # noqa: N802 - the same
        if urlsplit(self.path).path in ("/kv/save", "/kv/restore"):
            self._answer(self._transfer)
        else:
            super().do_POST()

    def handle_health_check(self) -> None:
        ready = self.server.model.ready.is_set()
        self._reply(200 if ready else 503, {"status": "ok" if ready else "loading"})

    def handle_models_request(self) -> None:
        """mlx_lm lists folders of this machine, and whatever the download cache has."""
        model = {"id": self.server.model_name, "object": "model", "created": self.created}
        self._reply(200, {"object": "list", "data": [model]})

    def handle_completion(self, request: CompletionRequest, stop_words: list[str]) -> None:
        """Called with the body read and its fields checked."""
        if (refusal := self._refusal()) is not None:
            self._reply(*refusal)
            return
        self.requested_model = self.server.model_name
        key = self.headers.get(SESSION_HEADER)
        turn = Turn(**vars(request), client=self._client(), session=key)
        try:
            with self.server.seats.taken(turn.client):
                self._generate(turn, stop_words)
        except ConnectionError:
            logging.info("the client left before the end of its answer")

    def _generate(self, turn: Turn, stop_words: list[str]) -> None:
        """Leave only when the generation thread has let go of the turn: its seat is free then."""
        try:
            super().handle_completion(turn, stop_words)
        except ConnectionError:
            turn.stop()
            self.server.generation.settle()
            raise
        finally:
            turn.stop()

    def _refusal(self) -> tuple[int, dict[str, object]] | None:
        """Why this request is not for this server; None when it is."""
        if (name := self.body.get("model", self.server.model_name)) != self.server.model_name:
            return 404, {"error": f"the model {str(name)[:100]!r} is not served here, {self.server.model_name!r} is"}
        if self.adapter is not None or self.requested_draft_model != ABSENT:
            return 400, {"error": "adapters and draft_model cannot be chosen by a request"}
        if not SESSION.fullmatch(self.headers.get(SESSION_HEADER, "none")):
            return 400, {"error": f"{SESSION_HEADER} must be 1 to 128 of A-Z a-z 0-9 . _ -"}
        return None

    def _slots(self) -> dict[str, object]:
        seats = self.server.seats
        context = self.server.model.context
        return {"slots": seats.count, "busy": seats.busy, "waiting": seats.waiting, "context": context}

    def _transfer(self) -> dict[str, object]:
        body = self._control_body()
        session, name = _session(body.get("session", "")), body.get("filename", "")
        kv = self.server.kv()
        act = kv.save if self.path.endswith("/save") else kv.restore
        return act(session, name, self._client())

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

    def _reply(self, status: int, body: dict[str, object]) -> None:
        content = json.dumps(body).encode()
        self._set_completion_headers(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is http.server's
        logging.info(format, *args)


def _session(key: str) -> str:
    if not SESSION.fullmatch(key):
        raise KvRefused(400, "session must be 1 to 128 of A-Z a-z 0-9 . _ -")
    return key

"""What commands say to a node that runs: found by its state folder or by its address, signed where it asks for that."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import msgspec

from viiwork_core.clock import SystemClock
from viiwork_core.config.env_file import with_env_file
from viiwork_core.config.running import dialled, running
from viiwork_core.config.schema import Config
from viiwork_core.errors import ConfigError, Unauthorized, ViiworkError
from viiwork_core.security.keys import fault
from viiwork_core.security.operator_token import HEADER as OPERATOR
from viiwork_core.security.operator_token import read_operator_token
from viiwork_core.security.secret import load_secret
from viiwork_core.security.signing import TO, Signer

TIMEOUT_S = 10.0

API_KEY = "VIIWORK_API_KEY"
"""The variable with the key that commands show to a node with API keys."""


class Refused(ViiworkError):
    """The node answers, and says no in its own words."""


class Operator:
    """Asks one node. All methods block and raise ViiworkError, with the node's words when it refuses."""

    def __init__(
        self, api: str, node_id: str, variable: str, state_dir: Path | None = None, *, timeout_s: float = TIMEOUT_S
    ) -> None:
        """`variable`: the environment variable with the mesh's secret, if it has one. `state_dir`: where the node was
        found; None: by its address."""
        self.api = api
        self.node_id = node_id
        self._variable = variable
        self._state_dir = state_dir
        self.timeout_s = timeout_s
        """Of one question."""

        self._environ: Mapping[str, str] = os.environ

    def with_secrets_of(self, file: Path | None) -> Operator:
        """The same, which also knows the environment file beside a configuration, if this user may read it."""
        with suppress(ConfigError):
            self._environ = with_env_file(os.environ, file)
        return self

    @classmethod
    def here(cls, config: Config, variable: str | None = None) -> Operator:
        """Of the node that runs with this configuration's state folder."""
        found = running(config.node.state_dir)
        return cls(found.api, found.node_id, variable or config.mesh.secret_env, config.node.state_dir)

    def renewed(self) -> Operator:
        """Of the process that is there now, which may be another one than before."""
        if self._state_dir is not None:
            found = running(self._state_dir)
            made = Operator(found.api, found.node_id, self._variable, self._state_dir)
        else:
            made = Operator(self.api, self._asked_id(self), self._variable)
        made._environ = self._environ
        return made

    @classmethod
    def at(cls, api: str, config: Config, variable: str | None = None) -> Operator:
        """Of the node at http://HOST:PORT."""
        api = cls.checked(api)
        stranger = cls(api, "", variable or config.mesh.secret_env)
        return cls(api, cls._asked_id(stranger), stranger._variable)

    @staticmethod
    def _asked_id(node: Operator) -> str:
        try:
            return str(node.ask("GET", "/v1/status")["node_id"])
        except (KeyError, TypeError) as error:
            raise ViiworkError(f"{node.api} does not answer as a node does") from error

    @staticmethod
    def checked(api: str) -> str:
        """http://HOST:PORT, which may be written without the scheme. Raises ConfigError for anything else."""
        api = api if "://" in api else f"http://{api}"
        if not _is_address(api):
            raise ConfigError(f"{api} is no address of a node", remedy="write http://HOST:PORT")
        return api

    def ask(self, method: str, path: str, body: object = None, *, signed: bool = False) -> Any:
        """The JSON that the node answers. What is not a GET is signed, if the variable is set; a GET where `signed`, or
        where the node answers no one without a proof."""
        raw = b"" if body is None else msgspec.json.encode(body)
        headers = [("Content-Type", "application/json")] if raw else []
        if self.node_id:
            headers.append((TO, self.node_id))
        headers += credentials(self._state_dir)
        proof = self._signature(method, path, headers, raw)
        signed = signed or method != "GET"
        response = self._send(method, path, [*headers, *proof] if signed else headers, raw)
        if response.status_code == Unauthorized.status and proof and not signed:
            response = self._send(method, path, [*headers, *proof], raw)
        return self._answer(response)

    def shown(self, path: str) -> list[tuple[str, str]]:
        """Headers of a GET that is sent by other means than `ask`: what this command knows, and its signature."""
        headers = [(TO, self.node_id), *credentials(self._state_dir)] if self.node_id else credentials(self._state_dir)
        return [*headers, *self._signature("GET", path, headers, b"")]

    def _send(self, method: str, path: str, headers: list[tuple[str, str]], raw: bytes) -> httpx.Response:
        try:
            return httpx.request(
                method, dialled(self.api) + path, content=raw, headers=headers, timeout=self.timeout_s, trust_env=False
            )
        except httpx.HTTPError as error:
            remedy = "see that it runs (`viiwork serve`), or name another with --node http://HOST:PORT"
            raise ViiworkError(f"the node at {self.api} does not answer: {error}", remedy=remedy) from error

    def _answer(self, response: httpx.Response) -> Any:
        try:
            answer = msgspec.json.decode(response.content)
            if response.is_success:
                return answer
            refusal = str(answer["error"]["message"])
        except (msgspec.DecodeError, KeyError, TypeError) as error:
            what = f"{self.api} answers {response.status_code}, and not as a node does"
            raise ViiworkError(
                what, remedy="see api.port for where the node listens: --node http://HOST:PORT"
            ) from error
        proof = f"set {self._variable} to the secret of the mesh, or {API_KEY} to an API key for what a client may read"
        raise Refused(refusal, remedy=proof if response.status_code == Unauthorized.status else "")

    def _signature(self, method: str, path: str, headers: list[tuple[str, str]], body: bytes) -> list[tuple[str, str]]:
        """What proves to a node of a secured mesh that its secret is known here; nothing where none is set."""
        signer = signer_of(self._environ, self._variable)
        return [] if signer is None else signer.sign(method, path, headers, body)


def signer_of(environ: Mapping[str, str], variable: str) -> Signer | None:
    """Signs for who has the mesh's secret in that variable; None: it is not set. Raises ConfigError."""
    if not environ.get(variable, "").strip():
        return None
    secret = load_secret(environ, variable=variable, open_mesh=False)
    assert secret is not None, "the variable is set"
    return Signer(secret.signature, node=f"viiwork-cli@{socket.gethostname()}", clock=SystemClock())


def credentials(state_dir: Path | None) -> list[tuple[str, str]]:
    """What a command shows to a node with API keys: the node's own token, if this user may read it in `state_dir`, and
    the key in VIIWORK_API_KEY. Raises ConfigError, without the key, for one that cannot be a key."""
    token = None if state_dir is None else read_operator_token(state_dir)
    key = os.environ.get(API_KEY, "").strip()
    if key and (wrong := fault(key)) is not None:
        # Not sent: what is no header would stand in the error of the library that says so.
        raise ConfigError(f"{API_KEY} holds no API key: {wrong}", remedy="set it to what `viiwork key new` printed")
    shown = [(OPERATOR, token)] if token else []
    return [*shown, ("Authorization", f"Bearer {key}")] if key else shown


def _is_address(api: str) -> bool:
    try:
        parts = urlsplit(api)
        return parts.scheme == "http" and bool(parts.hostname) and parts.port is not None
    except ValueError:
        return False

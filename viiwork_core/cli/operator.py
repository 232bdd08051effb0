"""What commands say to a node that runs: found by its state folder or by its address, signed where it asks for that."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import msgspec

from viiwork_core.clock import SystemClock
from viiwork_core.config.schema import Config
from viiwork_core.errors import ConfigError, Unauthorized, ViiworkError
from viiwork_core.security.secret import load_secret
from viiwork_core.security.signing import TO, Signer

TIMEOUT_S = 10.0

_ANY = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  # dialled as loopback, never bound


class Refused(ViiworkError):
    """The node answers, and says no in its own words."""


class _Identity(msgspec.Struct):
    """What node.json tells of a running node; more may stand there."""

    api: str
    node_id: str


class Operator:
    """Asks one node. All methods block and raise ViiworkError, with the node's words when it refuses."""

    def __init__(self, api: str, node_id: str, variable: str) -> None:
        """`variable`: the environment variable with the mesh's secret, if it has one."""
        self.api = api
        self._node_id = node_id
        self._variable = variable

    @classmethod
    def here(cls, config: Config, variable: str | None = None) -> Operator:
        """Of the node that runs with this configuration's state folder."""
        found = _identity(config.node.state_dir)
        return cls(found.api, found.node_id, variable or config.mesh.secret_env)

    @classmethod
    def at(cls, api: str, config: Config, variable: str | None = None) -> Operator:
        """Of the node at http://HOST:PORT."""
        api = cls.checked(api)
        stranger = cls(api, "", variable or config.mesh.secret_env)
        try:
            node_id = str(stranger.ask("GET", "/v1/status")["node_id"])
        except (KeyError, TypeError) as error:
            raise ViiworkError(f"{api} does not answer as a node does") from error
        return cls(api, node_id, stranger._variable)

    @staticmethod
    def checked(api: str) -> str:
        """http://HOST:PORT, which may be written without the scheme. Raises ConfigError for anything else."""
        api = api if "://" in api else f"http://{api}"
        if not _is_address(api):
            raise ConfigError(f"{api} is no address of a node", remedy="write http://HOST:PORT")
        return api

    def ask(self, method: str, path: str, body: object = None) -> Any:
        """The JSON that the node answers. What is not a GET is signed, if the variable is set."""
        raw = b"" if body is None else msgspec.json.encode(body)
        headers = [("Content-Type", "application/json")] if raw else []
        if self._node_id:
            headers.append((TO, self._node_id))
        if method != "GET":
            headers += self._signature(method, path, headers, raw)
        try:
            response = httpx.request(
                method, dialled(self.api) + path, content=raw, headers=headers, timeout=TIMEOUT_S, trust_env=False
            )
        except httpx.HTTPError as error:
            raise ViiworkError(f"the node at {self.api} does not answer: {error}", remedy="does it run?") from error
        return self._answer(response)

    def _answer(self, response: httpx.Response) -> Any:
        try:
            answer = msgspec.json.decode(response.content)
            if response.is_success:
                return answer
            refusal = str(answer["error"]["message"])
        except (msgspec.DecodeError, KeyError, TypeError) as error:
            what = f"{self.api} answers {response.status_code}, and not as a node does"
            raise ViiworkError(what) from error
        secret = f"set {self._variable} to the secret of the mesh"
        raise Refused(refusal, remedy=secret if response.status_code == Unauthorized.status else "")

    def _signature(self, method: str, path: str, headers: list[tuple[str, str]], body: bytes) -> list[tuple[str, str]]:
        """What proves to a node of a secured mesh that its secret is known here; nothing where none is set."""
        if not os.environ.get(self._variable, "").strip():
            return []
        secret = load_secret(os.environ, variable=self._variable, open_mesh=False)
        assert secret is not None, "the variable is set"
        signer = Signer(secret.signature, node=f"viiwork-cli@{socket.gethostname()}", clock=SystemClock())
        return signer.sign(method, path, headers, body)


def _identity(state_dir: Path) -> _Identity:
    path = state_dir / "node.json"
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Identity)
    except FileNotFoundError:
        raise ConfigError(
            f"no node runs with the state folder {state_dir}",
            remedy="start it with `viiwork serve`, or name its configuration with --config",
        ) from None
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error


def dialled(api: str) -> str:
    """The node's own address, and loopback for one that listens on all."""
    host, port = urlsplit(api).hostname or "", urlsplit(api).port
    host = _ANY.get(host, host)
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def _is_address(api: str) -> bool:
    try:
        parts = urlsplit(api)
        return parts.scheme == "http" and bool(parts.hostname) and parts.port is not None
    except ValueError:
        return False

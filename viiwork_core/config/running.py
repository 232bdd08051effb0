"""The node that runs with a state folder, as node.json there tells of it."""

from __future__ import annotations

from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import msgspec

from viiwork_core.errors import ConfigError

FILE: Final = "node.json"

_ANY: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  # dialled as loopback, never bound


class Running(msgspec.Struct, frozen=True):
    """What node.json tells. Further fields are ignored."""

    api: str
    """http://HOST:PORT, as it listens."""

    node_id: str

    @property
    def url(self) -> str:
        """http://HOST:PORT to dial from this machine."""
        return dialled(self.api)


def running(state_dir: Path) -> Running:
    """The node of that folder. Raises ConfigError when none runs; one that was killed leaves its file behind."""
    path = state_dir / FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=Running)
    except FileNotFoundError:
        raise ConfigError(
            f"no node runs with the state folder {state_dir}",
            remedy="start it with `viiwork serve`, or name its configuration with --config",
        ) from None
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(
            f"{path} cannot be read: {error}",
            remedy="run the command as the node's user, or name the node with --node http://HOST:PORT",
        ) from error


def dialled(api: str) -> str:
    """The node's own address, and loopback for one that listens on all."""
    host, port = urlsplit(api).hostname or "", urlsplit(api).port
    host = _ANY.get(host, host)
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"

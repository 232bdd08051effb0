"""Docker keeps a node running: a Compose file, and the Dockerfile that its image is built from on this machine."""

from __future__ import annotations

import json
import platform
import re
from collections.abc import Iterator
from importlib.resources import files as resources
from pathlib import Path
from typing import Any, ClassVar, Final

from viiwork_core.setup.access import device_groups, outermost
from viiwork_core.setup.locations import Locations
from viiwork_core.setup.service import Service, Show, attempt, run
from viiwork_core.setup.systemd import OPEN_FILES
from viiwork_core.setup.written import WrittenFile

PROJECT: Final = "viiwork"
_WHEELS: Final = """\
Wheels of viiwork that lie here are installed into the image instead of those of the package index: put the output of
`make dist` here to build an image of a source tree.
"""
_HEALTH: Final = "import urllib.request as r; r.urlopen('http://127.0.0.1:{port}/health', timeout=5)"


class Docker(Service):
    """One container with the node and its engines, in the network of the host: a mesh needs its addresses."""

    name: ClassVar[str] = "docker"
    description = "a container by Docker Compose: starts with Docker; its image is built here, which takes a while"

    @classmethod
    def unavailable(cls, locations: Locations) -> str:
        if platform.system() == "Darwin":
            return "a container on a Mac cannot use its GPU"
        if attempt(("docker", "compose", "version")).returncode:
            return "`docker compose` does not work here"
        if attempt(("docker", "info", "--format", "{{.ServerVersion}}")).returncode:
            return "no Docker engine answers this user"
        return "" if locations.base == Path("/") else f"the container would not find its files in {locations.base}"

    @property
    def folder(self) -> Path:
        """Where the Compose file and all it needs lie."""
        return self.subject.locations.config.parent / "docker"

    @property
    def _compose(self) -> tuple[str, ...]:
        return ("docker", "compose", "--project-name", PROJECT, "--file", str(self.folder / "compose.yaml"))

    def files(self) -> tuple[WrittenFile, ...]:
        recipe = self.subject.dockerfile or resources(__package__).joinpath("Dockerfile").read_text("utf-8")
        return (
            WrittenFile(self.folder / "compose.yaml", self._text()),
            WrittenFile(self.folder / "image" / "Dockerfile", recipe),
            WrittenFile(self.folder / "image" / "wheels" / "README", _WHEELS),
        )

    def start(self, show: Show) -> None:
        run((*self._compose, "up", "--detach", "--build"), show, timeout_s=2 * 3600)

    def stop(self, show: Show) -> None:
        run((*self._compose, "down"), show, timeout_s=self.subject.stop_s + 60)

    def is_active(self) -> bool:
        found = attempt((*self._compose, "ps", "--quiet", "--status", "running"))
        return found.returncode == 0 and bool(found.stdout.strip())

    def log_hint(self) -> str:
        return f"docker logs -f {PROJECT}"

    def last_words(self) -> str:
        return attempt(("docker", "logs", "--tail", "10", PROJECT)).stdout.strip()

    def remains(self) -> tuple[str, ...]:
        return ("the image viiwork:local: docker image rm viiwork:local removes it",)

    def notes(self) -> tuple[str, ...]:
        wheels = self.folder / "image" / "wheels"
        said = [
            "the image is built on this machine: its first start takes long, and some GB of disk",
            f"viiwork is installed into it from {wheels}: put the wheels of `make dist` there",
        ]
        if not self.subject.dockerfile:
            said.append("no engine brings an image for these cards: it holds the node alone")
        return tuple(said)

    def _text(self) -> str:
        head = "# Written by `viiwork init`. `viiwork uninstall` removes it.\n"
        return head + "\n".join(_yaml({"services": {PROJECT: dict(self._service())}}, 0)) + "\n"

    def _service(self) -> Iterator[tuple[str, Any]]:
        subject, places = self.subject, self.subject.locations
        yield "build", {"context": "./image"}
        yield "image", "viiwork:local"
        yield "container_name", PROJECT
        yield "command", ["viiwork", "serve", "--config", _literal(places.config)]
        # The mesh's addresses are the host's; drivers name processes as the host does, and share memory with it.
        yield from (("network_mode", "host"), ("pid", "host"), ("ipc", "host"))
        yield "restart", "unless-stopped"
        yield "stop_grace_period", f"{subject.stop_s}s"
        yield "init", True
        yield "env_file", [{"path": _literal(places.environment), "required": False}]
        yield "environment", {"HOME": _literal(places.state), "XDG_STATE_HOME": _literal(places.state.parent)}
        yield "volumes", list(self._volumes())
        yield "cap_drop", ["ALL"]
        yield "security_opt", ["no-new-privileges:true"]
        yield "read_only", True
        yield "tmpfs", ["/tmp"]  # noqa: S108 - the container's own
        yield "ulimits", {"nofile": {"soft": OPEN_FILES, "hard": OPEN_FILES}, "memlock": -1}
        yield "logging", {"driver": "json-file", "options": {"max-size": "10m", "max-file": "3"}}
        yield (
            "healthcheck",
            {
                "test": ["CMD", "python3", "-c", _HEALTH.format(port=subject.port)],
                "interval": "30s",
                "timeout": "10s",
                # A large model takes its time to load, and is not sick meanwhile.
                "start_period": "1h",
            },
        )
        yield from _cards(subject.vendor)

    def _volumes(self) -> Iterator[dict[str, Any]]:
        """Each under the path that it has on the host, so that the configuration is right in both."""
        subject, places = self.subject, self.subject.locations
        # The folder, not the file: a file that is replaced would stay the old one in there.
        yield _mount(places.config.parent, read_only=True)
        yield _mount(places.state, read_only=False)
        for path in outermost((*([subject.models] if subject.models else []), *subject.reads)):
            yield _mount(path, read_only=True)


def _cards(vendor: str) -> Iterator[tuple[str, Any]]:
    if vendor == "amd":
        yield "devices", ["/dev/kfd", "/dev/dri"]
        yield "group_add", list(device_groups()) or ["video", "render"]
    if vendor == "nvidia":
        # By CDI, which works without NVIDIA's own runtime in Docker.
        cards = {"driver": "cdi", "device_ids": ["nvidia.com/gpu=all"], "capabilities": ["gpu"]}
        yield "deploy", {"resources": {"reservations": {"devices": [cards]}}}


def _mount(path: Path, *, read_only: bool) -> dict[str, Any]:
    return {"type": "bind", "source": _literal(path), "target": _literal(path), "read_only": read_only}


def _literal(path: Path) -> str:
    """Compose puts variables in place of $NAME."""
    return str(path).replace("$", "$$")


_PLAIN: Final = re.compile(r"[A-Za-z_./][A-Za-z0-9_./-]*")
_WORDS: Final = frozenset({"true", "false", "null", "yes", "no", "on", "off", "y", "n"})


def _yaml(value: Any, depth: int) -> Iterator[str]:
    """Blocks of YAML, as a person would write them."""
    space = "  " * depth
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
        mark = f"{space}{key}:" if isinstance(value, dict) else f"{space}-"
        if isinstance(inner, dict) and isinstance(value, list):
            first, *rest = _yaml(inner, depth + 1)
            yield f"{mark} {first.lstrip()}"
            yield from rest
        elif isinstance(inner, dict | list) and inner:
            yield mark
            yield from _yaml(inner, depth + 1)
        else:
            yield f"{mark} {_scalar(inner)}"


def _scalar(value: Any) -> str:
    """JSON is YAML; quotes only where they are needed."""
    plain = isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _WORDS
    return value if plain else json.dumps(value)

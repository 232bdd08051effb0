"""A LaunchAgent that keeps a node running on a Mac: python -m viiwork_mlx.launch_agent --help

It is written, not loaded: what is to be typed next is printed.
"""

from __future__ import annotations

import argparse
import os
import stat
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from string import Template
from xml.sax.saxutils import escape

LABEL = "fi.viiwork.node"
TEMPLATE = "launch_agent.plist"


@dataclass(frozen=True, slots=True)
class LaunchAgent:
    """The paths of one node. All are absolute: launchd knows no PATH and no ~."""

    program: Path
    """The `viiwork` command."""

    config: Path
    environment: Path
    """File of lines NAME=VALUE with the mesh's secret and API keys, mode 0600, read when the node starts."""

    log: Path
    home: Path
    label: str = LABEL

    def render(self) -> bytes:
        """The property list. Raises ValueError for a path that is not absolute."""
        paths = {name: getattr(self, name) for name in ("program", "config", "environment", "log", "home")}
        for name, path in paths.items():
            if not path.is_absolute():
                raise ValueError(f"{name}: {path} is not absolute")
        values = {"label": self.label} | {name: str(path) for name, path in paths.items()}
        template = Template(files(__package__).joinpath(TEMPLATE).read_text("utf-8"))
        return template.substitute({name: escape(value) for name, value in values.items()}).encode()


def check_environment(file: Path) -> None:
    """Raise ValueError unless the file of secrets is one that only its owner can read."""
    try:
        mode = file.stat().st_mode
    except OSError as error:
        raise ValueError(
            f"--environment: {file}: {error.strerror}; make it: install -m 600 /dev/null {file}, and write "
            "VIIWORK_MESH_SECRET=... into it"
        ) from error
    if not stat.S_ISREG(mode) or mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ValueError(f"--environment: {file} can be read by others; run: chmod 600 {file}")


def write(agent: LaunchAgent, folder: Path) -> Path:
    """Write it there, mode 0600, and return its path. Raises ValueError, OSError."""
    check_environment(agent.environment)
    content, path = agent.render(), folder / f"{agent.label}.plist"
    folder.mkdir(parents=True, exist_ok=True)
    agent.log.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.unlink(missing_ok=True)
    with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:  # noqa: PTH123 - a mode of its own
        file.write(content)
    part.replace(path)
    return path


def main(argv: Sequence[str] | None = None) -> int:
    """Write the agent and say how to load it."""
    given = _parser(Path.home()).parse_args(argv)
    agent = LaunchAgent(
        given.program.absolute(), given.config.absolute(), given.environment.absolute(), given.log, Path.home()
    )
    try:
        path = write(agent, given.folder)
    except (ValueError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    domain = f"gui/{os.getuid()}"
    sys.stdout.write(f"{path}\nlaunchctl bootstrap {domain} '{path}'\nlaunchctl bootout {domain}/{agent.label}\n")
    return 0


def _parser(home: Path) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="viiwork_mlx.launch_agent", description=__doc__)
    own = home / ".config" / "viiwork"
    parser.add_argument("--config", type=Path, default=own / "viiwork.yaml", help="the node's configuration")
    parser.add_argument("--environment", type=Path, default=own / "environment", help="file of secrets, mode 0600")
    program = Path(sys.executable).with_name("viiwork")
    parser.add_argument("--program", type=Path, default=program, help="the viiwork command")
    parser.add_argument("--log", type=Path, default=home / "Library" / "Logs" / "viiwork.log")
    parser.add_argument("--folder", type=Path, default=home / "Library" / "LaunchAgents", help="where to write it")
    return parser


if __name__ == "__main__":
    sys.exit(main())

"""Where the files of a node lie on this machine: the system's for root, the user's own for others."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from viiwork_core.config import env_file, paths


@dataclass(frozen=True, slots=True)
class Locations:
    """Paths of one installation; all absolute, all below `base` where one is given."""

    config: Path
    """viiwork.yaml, mode 0644."""

    environment: Path
    """viiwork.env: lines NAME=VALUE with the mesh's secret, mode 0600."""

    state: Path
    """node.state_dir. The wizard writes it into the configuration."""

    records: Path
    """The wizard's own folder: lock, manifest, journal. Not in `state`, which belongs to whoever the node runs as: by
    these records root removes files."""

    units: Path
    """systemd's units: the system's or the user's."""

    accounts: Path
    """systemd's list of the accounts that viiwork needs; root's only."""

    agents: Path
    """launchd's agents of this user."""

    log: Path
    """Where a node without a service manager writes its log."""

    home: Path
    system: bool
    """The system's, not a user's."""

    base: Path = Path("/")

    @classmethod
    def here(cls, environ: Mapping[str, str], *, base: Path = Path("/"), uid: int | None = None) -> Self:
        """For this user (`uid`: another one), with `base` in place of /: so a test touches nothing of the machine."""
        system = (os.geteuid() if uid is None else uid) == 0
        home = Path(environ.get("HOME") or Path.home())
        config, state = paths.config_files(environ, uid)[0], paths.state_dir(environ, uid)
        folder = config.parent
        found = {
            "config": config,
            "environment": folder / env_file.NAME,
            "state": state,
            "records": state.with_name(f"{state.name}-setup"),
            "units": Path("/etc/systemd/system") if system else folder.with_name("systemd") / "user",
            "accounts": Path("/etc/sysusers.d/viiwork.conf"),
            "agents": home / "Library" / "LaunchAgents",
            "log": home / "Library" / "Logs" / "viiwork.log" if sys.platform == "darwin" else state / "viiwork.log",
            "home": home,
        }
        return cls(**{name: below(base, path) for name, path in found.items()}, system=system, base=base)


def below(base: Path, path: Path) -> Path:
    """The path with `base` in place of /. One that lies below it already stays."""
    return path if path.is_relative_to(base) else base / path.relative_to("/")

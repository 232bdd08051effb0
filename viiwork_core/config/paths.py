"""Where viiwork keeps its state and looks for its configuration."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

_OF_THE_MACHINE = Path("/etc/viiwork/viiwork.yaml")


def state_dir(environ: Mapping[str, str], uid: int | None = None) -> Path:
    """The default of node.state_dir: /var/lib/viiwork for root, else a folder of the user's XDG state."""
    if _is_root(uid):
        return Path("/var/lib/viiwork")
    return _xdg(environ, "XDG_STATE_HOME", ".local/state") / "viiwork"


def config_files(environ: Mapping[str, str], uid: int | None = None) -> tuple[Path, ...]:
    """Where the configuration is looked for when none is named: the machine's for root, for others their own first."""
    if _is_root(uid):
        return (_OF_THE_MACHINE,)
    return _xdg(environ, "XDG_CONFIG_HOME", ".config") / "viiwork/viiwork.yaml", _OF_THE_MACHINE


def _is_root(uid: int | None) -> bool:
    return (os.geteuid() if uid is None else uid) == 0


def _xdg(environ: Mapping[str, str], variable: str, below_home: str) -> Path:
    named = Path(environ.get(variable, ""))
    # The XDG specification says to ignore relative paths.
    if named.is_absolute():
        return named
    home = environ.get("HOME")
    return (Path(home) if home else Path.home()) / below_home

"""A machine before and after `viiwork init`: what lies where."""

from __future__ import annotations

import stat
import sys
from collections.abc import Callable
from pathlib import Path

from viiwork_core.setup.installation import Installation
from viiwork_core.setup.locations import Locations
from viiwork_core.setup.process import BackgroundProcess
from viiwork_core.setup.service import Subject
from viiwork_core.setup.written import WrittenFile

VIIWORK = Path(sys.executable).with_name("viiwork")
SetUp = Callable[..., BackgroundProcess]
"""Writes a node's files as the wizard does: its model's path or None, and more of its configuration."""

SECRET = "c2VjcmV0IHRoYXQgbm9ib2R5IHNoYWxsIHNlZSAhISE="
OLD = {"etc/viiwork/viiwork.yaml": "node: {name: before}\n", "etc/viiwork/other": "somebody else's\n"}
"""What lies on the machine before."""


def places_of(base: Path) -> Locations:
    return Locations.here({"HOME": "/home/somebody"}, base=base, uid=0)


def files(places: Locations, text: str = "node: {name: attic}\n") -> tuple[WrittenFile, ...]:
    """What a wizard writes: one file takes the place of an older one, another lies in folders that there are not."""
    return (
        WrittenFile(places.config, text),
        WrittenFile(places.environment, f"VIIWORK_MESH_SECRET={SECRET}\n", 0o600, (SECRET,)),
        WrittenFile(places.units / "viiwork.service", "[Service]\n"),
    )


def prepare(base: Path) -> None:
    for name, text in OLD.items():
        (base / name).parent.mkdir(parents=True, exist_ok=True)
        (base / name).write_text(text)
    (base / "var" / "lib").mkdir(parents=True)


def write(base: Path) -> None:
    """What the wizard does after the last yes."""
    places = places_of(base)
    with Installation.held(places) as installation:
        installation.write(files(places), BackgroundProcess(Subject(places, Path("/opt/viiwork/bin/viiwork"))))


def remove(base: Path) -> None:
    """What `viiwork uninstall` does once the node has stopped."""
    with Installation.held(places_of(base)) as installation:
        installation.remove(force=False)


def recover(base: Path) -> str:
    """What the next run finds."""
    with Installation.held(places_of(base)) as installation:
        return installation.recovered


def on(base: Path) -> dict[str, tuple[int, str]]:
    """All files of the machine with their modes; folders with a slash."""
    found = {}
    for path in base.rglob("*"):
        name = str(path.relative_to(base))
        if path.is_dir():
            found[f"{name}/"] = (0, "")
        else:
            found[name] = (stat.S_IMODE(path.stat().st_mode), path.read_text())
    return found

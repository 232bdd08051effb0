"""The scan: which models lie in a folder, as the installed engines recognise them. Blocking; nothing is opened here.

What is no regular file is told and never opened: a pipe would hold up whoever reads it.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from viiwork_core.contracts.capabilities import Recognizes
from viiwork_core.contracts.engine import Engine
from viiwork_core.contracts.recognition import FolderListing, FoundModel
from viiwork_core.errors import ConfigError, PluginError
from viiwork_core.registry.guard import attempt
from viiwork_core.registry.registry import Registry

DEPTH: Final = 3
"""Folders below the one that was named: OWNER/MODEL/QUANTISATION, and a download cache's MODEL/snapshots/REVISION."""

MAX_ENTRIES: Final = 100_000
"""Files and folders that are looked at."""

MAX_MODELS: Final = 512
"""Of one scan."""

MAX_TOLD: Final = 50
"""Places that are told one by one; the rest is counted."""

_KINDS: Final[Mapping[int, str]] = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFBLK: "a device",
    stat.S_IFCHR: "a device",
}


@dataclass(frozen=True, slots=True)
class Recognised:
    """A model, and the engine that knows it."""

    engine: str
    model: FoundModel


@dataclass(frozen=True, slots=True)
class Scan:
    """What a folder holds."""

    folder: Path
    models: tuple[Recognised, ...] = ()
    """By path, also those that cannot be served."""

    passed_over: tuple[str, ...] = ()
    """What was not looked at, a sentence each."""

    files: int = 0

    @property
    def usable(self) -> tuple[Recognised, ...]:
        """Those that can be served."""
        return tuple(one for one in self.models if not one.model.problem)

    @property
    def broken(self) -> tuple[Recognised, ...]:
        """Those that cannot."""
        return tuple(one for one in self.models if one.model.problem)


def recognisers(registry: Registry) -> dict[str, type[Engine]]:
    """The installed engines that know their models by sight, by name."""
    engines = {name: registry.engine(name) for name in registry.names("engine")}
    return {name: engine for name, engine in engines.items() if issubclass(engine, Recognizes)}


def scan(folder: Path, engines: Mapping[str, type[Engine]], *, depth: int = DEPTH) -> Scan:
    """Look into `folder` and `depth` levels of folders below it. Raises ConfigError when it cannot be read at all."""
    folder = folder.expanduser().absolute()
    if not folder.is_dir():
        what = "is not a folder" if folder.exists() else "does not exist"
        raise ConfigError(f"{folder} {what}", remedy="name the folder that holds the model files")
    walk = _Walk()
    listings = [listing for listing in walk.listings(folder, depth) if listing.files]
    if walk.refused == folder:
        raise ConfigError(f"{folder} cannot be read by this user", remedy="let this user read it, or name another one")
    found, failures = list[Recognised](), list[str]()
    for name, engine in engines.items():
        models, failed = _recognised(name, engine, listings)
        found, failures = found + models, failures + failed
    found.sort(key=lambda one: (str(one.model.path), one.engine))
    if len(found) > MAX_MODELS:
        failures.append(f"only the first {MAX_MODELS} of {len(found)} models are offered: name a smaller folder")
    files = sum(len(listing.files) for listing in listings)
    return Scan(folder, tuple(found[:MAX_MODELS]), (*failures, *walk.told()), files)


def _recognised(
    name: str, engine: type[Engine], listings: Sequence[FolderListing]
) -> tuple[list[Recognised], list[str]]:
    """What one engine knows; an engine that fails costs its own models only."""
    assert issubclass(engine, Recognizes)
    found = list[Recognised]()
    for listing in listings:
        try:
            models = attempt(f"looking for models of {name}", partial(_checked, engine, listing))
        except PluginError as error:
            return found, [error.message]
        found += [Recognised(name, model) for model in models]
    return found, []


def _checked(engine: type[Recognizes], listing: FolderListing) -> list[FoundModel]:
    models = list(engine.recognize(listing))
    for one in models:
        if not isinstance(one, FoundModel) or not (one.path == listing.path or one.path.parent == listing.path):
            raise TypeError(f"it says {one!r} of {listing.path}")
    return models


class _Walk:
    """One walk through a tree, folders before what is in them."""

    def __init__(self) -> None:
        self.refused: Path | None = None
        """The last folder that could not be read."""

        self._seen = set[tuple[int, int]]()
        self._entries = 0
        self._told = list[str]()
        self._untold = 0

    def listings(self, folder: Path, depth: int) -> Iterator[FolderListing]:
        files, folders = dict[str, int](), list[Path]()
        for entry in self._entries_of(folder):
            # A hidden one is somebody's own business: a cache, a download that is not done.
            status = None if entry.name.startswith(".") else self._status(entry)
            if status is None:
                continue
            if stat.S_ISREG(status.st_mode):
                files[entry.name] = status.st_size
            elif stat.S_ISDIR(status.st_mode):
                folders.append(Path(entry.path))
            else:
                self._tell(entry.path, f"is {_KINDS.get(stat.S_IFMT(status.st_mode), 'no regular file')}")
        yield FolderListing(folder, files)
        for below in sorted(folders) if depth else ():
            yield from self.listings(below, depth - 1)

    def _entries_of(self, folder: Path) -> Iterator[os.DirEntry[str]]:
        """None of a folder that was seen already, through a link, or when there are too many."""
        try:
            own = folder.stat()
            if (own.st_dev, own.st_ino) in self._seen:
                return
            self._seen.add((own.st_dev, own.st_ino))
            with os.scandir(folder) as entries:
                for entry in entries:
                    self._entries += 1
                    if self._entries > MAX_ENTRIES:
                        return
                    yield entry
        except OSError as error:
            self.refused = folder
            self._tell(str(folder), f"cannot be read: {error.strerror}")

    def _status(self, entry: os.DirEntry[str]) -> os.stat_result | None:
        """Of what it is, or links to."""
        try:
            return entry.stat()
        except OSError as error:
            what = {errno.ENOENT: "is a link to nothing", errno.ELOOP: "is a link to itself"}
            self._tell(entry.path, what.get(error.errno or 0, f"cannot be looked at: {error.strerror}"))
            return None

    def _tell(self, path: str, what: str) -> None:
        if len(self._told) < MAX_TOLD:
            self._told.append(f"{path} {what}")
        else:
            self._untold += 1

    def told(self) -> tuple[str, ...]:
        """What was passed over."""
        more = [f"{self._untold} more places were passed over"] if self._untold else []
        if self._entries > MAX_ENTRIES:
            more.append(f"only the first {MAX_ENTRIES} files and folders were looked at: name a smaller folder")
        return (*self._told, *more)

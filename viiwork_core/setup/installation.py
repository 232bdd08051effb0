"""Writing what `viiwork init` decided, all of it or nothing, and removing it again."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from msgspec import structs

from viiwork_core.errors import ConfigError, ViiworkError
from viiwork_core.setup import journal, manifest
from viiwork_core.setup.disk import digest_of, settle, write_new
from viiwork_core.setup.locations import Locations
from viiwork_core.setup.lock import locked
from viiwork_core.setup.manifest import Entry, Manifest, read_manifest
from viiwork_core.setup.service import Service
from viiwork_core.setup.written import WrittenFile

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class Removal:
    """What taking an installation away comes to."""

    remove: tuple[Path, ...]
    """As they were written."""

    changed: tuple[Path, ...]
    """Changed since they were written: kept unless it is forced."""

    backups: tuple[Path, ...]
    """What stood there before; kept."""


class Installation:
    """The files of one node, under the lock that keeps a second wizard out.

    with Installation.held(locations) as installation:   # raises ConfigError: another wizard runs
        ...                                              # ask; changes nothing
        installation.write(files, service)               # all or nothing
        service.start(show)
    """

    def __init__(self, locations: Locations, recovered: str = "") -> None:
        self.locations = locations
        self.recovered = recovered
        """What became of a run that had been interrupted, as a sentence; empty: there was none."""

    @classmethod
    @contextmanager
    def held(cls, locations: Locations) -> Iterator[Installation]:
        """Hold the lock for the block, after an interrupted run was completed or undone. Raises ConfigError when
        another wizard runs, ViiworkError when what was left cannot be cleared."""
        with locked(locations.records):
            yield cls(locations, journal.recover(locations.records))

    @property
    def manifest(self) -> Manifest | None:
        """What is installed; None: nothing by `viiwork init`. Raises ConfigError for one that cannot be read."""
        return read_manifest(self.locations.records)

    def in_the_way(self, files: Sequence[WrittenFile]) -> tuple[Path, ...]:
        """Places of these files where something lies that is not as an earlier run wrote it: kept as a backup."""
        ours = self._as_written()
        return tuple(file.path for file in files if file.path.exists() and file.path not in ours)

    def write(self, files: Sequence[WrittenFile], service: Service) -> Manifest:
        """Put all these files on disk, those of the service among them, or none; what stood there becomes a backup.

        A signal that would end the process waits until all is done. Raises ViiworkError: a full disk, a folder that
        cannot be written; then everything is as it was.
        """
        if len({file.path for file in files}) != len(files):
            raise ConfigError("two files are to be written to one path", remedy="give each a path of its own")
        with _undisturbed():
            try:
                return self._write(files, service)
            except OSError as error:
                what = f"{error.filename or self.locations.config.parent}: {error.strerror}: nothing was written"
                raise ViiworkError(what, remedy="make room, or make it writable, and run it again") from error

    def _write(self, files: Sequence[WrittenFile], service: Service) -> Manifest:
        records, ours = self.locations.records, self._as_written()
        mode = 0o755 if self.locations.system else 0o700
        planned = journal.plan(files, mode, ours)
        installed = self._manifest(planned, service)
        record = WrittenFile(records / manifest.NAME, installed.text(), 0o600)
        whole = journal.plan([*files, record], mode, {*ours, record.path})
        try:
            whole.store(records / journal.STAGING)
            whole.stage([*files, record])
            journal.enter(records, journal.STAGING, journal.COMMITTING)
        except OSError:
            journal.recover(records)
            raise
        try:
            whole.commit()
        except OSError:
            journal.enter(records, journal.COMMITTING, journal.UNDOING)
            journal.recover(records)
            raise
        whole.clear()
        journal.end(records / journal.COMMITTING)
        return installed

    def _manifest(self, planned: journal.Journal, service: Service) -> Manifest:
        """That of the files of this run, and of earlier ones that it leaves alone."""
        before = self.manifest
        written = {step.path: _entry(step) for step in planned.steps}
        entries, folders = tuple(written.values()), planned.folders
        if before is not None:
            entries = (*(_with_backup(entry, before) for entry in entries), *_others(before, written))
            folders = tuple(sorted({*before.folders, *folders}))
        subject = service.subject
        return Manifest(
            *(manifest.VERSION, service.name, subject.program, subject.locations.state, subject.grace_s),
            files=entries,
            folders=folders,
        )

    def _as_written(self) -> frozenset[Path]:
        """Files that lie there as the manifest says."""
        found = self.manifest
        entries = found.files if found else ()
        return frozenset(entry.path for entry in entries if digest_of(entry.path) == entry.sha256)

    def removal(self) -> Removal | None:
        """What `remove` would do; None: nothing was installed here by `viiwork init`."""
        found = self.manifest
        if found is None:
            return None
        there = [entry for entry in found.files if entry.path.is_symlink() or entry.path.exists()]
        ours = self._as_written()
        return Removal(
            tuple(entry.path for entry in there if entry.path in ours),
            tuple(entry.path for entry in there if entry.path not in ours),
            tuple(entry.backup for entry in found.files if entry.backup and entry.backup.exists()),
        )

    def remove(self, *, force: bool) -> None:
        """Take away what was written, what was changed since only if it is forced, and folders that are empty then.

        What is kept stays in the manifest. An end in the middle leaves the rest to the next call. Raises ViiworkError.
        """
        found, planned = self.manifest, self.removal()
        if found is None or planned is None:
            return
        paths = {*planned.remove, *(planned.changed if force else ())}
        with _undisturbed():
            try:
                self._remove(found, paths)
            except OSError as error:
                what = f"{error.filename}: {error.strerror}: it could not be removed"
                raise ViiworkError(what, remedy="make it writable, and run `viiwork uninstall` again") from error

    def _remove(self, found: Manifest, paths: set[Path]) -> None:
        for path in paths:
            path.unlink(missing_ok=True)
        settle({path.parent for path in paths})
        for folder in reversed(found.folders):
            # It holds what somebody else put there.
            with suppress(OSError):
                folder.rmdir()
        kept = tuple(entry for entry in found.files if entry.path.is_symlink() or entry.path.exists())
        own = self.locations.records / manifest.NAME
        if not kept:
            own.unlink(missing_ok=True)
            return
        fresh = own.with_suffix(".new")
        fresh.unlink(missing_ok=True)
        folders = tuple(folder for folder in found.folders if folder.exists())
        write_new(fresh, structs.replace(found, files=kept, folders=folders).text(), 0o600)
        fresh.replace(own)


def _entry(step: journal.Step) -> Entry:
    return Entry(step.path, step.sha256, step.backup if step.kept else None)


def _with_backup(entry: Entry, before: Manifest) -> Entry:
    """An entry that does not forget the backup of an earlier run."""
    earlier = before.entry(entry.path)
    return Entry(entry.path, entry.sha256, entry.backup or (earlier.backup if earlier else None))


def _others(before: Manifest, written: dict[Path, Entry]) -> Iterator[Entry]:
    return (entry for entry in before.files if entry.path not in written)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Signals that would end the process wait: what is under way here takes a moment, and ends in order."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

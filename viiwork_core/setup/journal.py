"""The journal: several files written as one. After an end at any moment they are all there, or none of them.

Each file is first written whole beside its place, and what stands there gets a second name as its backup. Until then
an interrupted run is undone. Then one rename of the journal turns the run into one that is completed, whatever happens:
what remains are renames, which need no room on the disk. Where one of them is refused all the same, another rename of
the journal turns the run into one that is undone.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from viiwork_core.errors import ConfigError, ViiworkError
from viiwork_core.setup.disk import digest, digest_of, missing_folders, settle, settle_file, write_new
from viiwork_core.setup.manifest import as_path
from viiwork_core.setup.written import WrittenFile

STAGING: Final = "journal.staging"
COMMITTING: Final = "journal.committing"
UNDOING: Final = "journal.undoing"


class Step(msgspec.Struct, frozen=True):
    """One file on its way."""

    path: Path
    staged: Path
    sha256: str
    backup: Path | None = None
    """A second name of what stands at `path` before; None: nothing does."""

    kept: bool = True
    """Whether the backup outlives the run."""


class Journal(msgspec.Struct, frozen=True):
    """What one run does."""

    steps: tuple[Step, ...]
    """The last one is the manifest."""

    folders: tuple[Path, ...]
    """Made for them, the outermost first."""

    folder_mode: int = 0o755

    def store(self, path: Path) -> None:
        """Begin: from now on an end at any moment is recovered from. Raises OSError."""
        path.with_suffix(".new").unlink(missing_ok=True)
        write_new(path.with_suffix(".new"), msgspec.json.encode(self, enc_hook=str).decode(), 0o600)
        path.with_suffix(".new").rename(path)
        settle([path.parent])

    def stage(self, files: Sequence[WrittenFile]) -> None:
        """Write each file beside its place, and name a backup of what is there. Raises OSError."""
        for folder in self.folders:
            folder.mkdir(mode=0o700)
            # Not what the umask makes of it: the node's user has to get through.
            folder.chmod(self.folder_mode)
        for step, file in zip(self.steps, files, strict=True):
            write_new(step.staged, file.text, file.mode)
            if step.backup is not None:
                _second_name(step.path, step.backup)
        self._settle()

    def commit(self) -> None:
        """Put each file into its place; goes on where an earlier run ended. Raises OSError."""
        for step in self.steps:
            if step.staged.exists():
                step.staged.replace(step.path)
        self._settle()

    def clear(self) -> None:
        """Remove the backups that nobody needs."""
        for step in self.steps:
            if step.backup is not None and not step.kept:
                step.backup.unlink(missing_ok=True)

    def undo(self) -> None:
        """Everything as it was; goes on where an earlier run ended. Raises OSError."""
        for step in reversed(self.steps):
            _undo(step)
        for folder in reversed(self.folders):
            # Somebody may have put something there meanwhile.
            with suppress(OSError):
                folder.rmdir()
        self._settle()

    def _settle(self) -> None:
        settle({step.path.parent for step in self.steps})


def plan(files: Sequence[WrittenFile], folder_mode: int, ours: Collection[Path]) -> Journal:
    """The journal of a run that writes these files; `ours`: what is there as an earlier run wrote it."""
    folders = {folder for file in files for folder in missing_folders(file.path)}
    steps = tuple(_step(file, kept=file.path not in ours) for file in files)
    return Journal(steps, tuple(sorted(folders)), folder_mode)


def enter(records: Path, before: str, after: str) -> None:
    """Take the run of the journal into its next state. Raises OSError."""
    (records / before).rename(records / after)
    settle([records])


def recover(records: Path) -> str:
    """Bring a run that was interrupted to an end, in one direction or the other; what was done, or an empty text.

    Raises ViiworkError when that is not possible now; it can be tried again.
    """
    (records / STAGING).with_suffix(".new").unlink(missing_ok=True)
    for name in (STAGING, COMMITTING, UNDOING):
        path = records / name
        if not path.exists():
            continue
        journal = _read(path)
        try:
            return _recovered(path, journal)
        except OSError as error:
            what = f"{error.filename}: {error.strerror}: what an interrupted `viiwork init` left cannot be cleared"
            raise ViiworkError(what, remedy="correct that, then run the same command again") from error
    return ""


def _recovered(path: Path, journal: Journal) -> str:
    if path.name == COMMITTING:
        journal.commit()
        journal.clear()
        said = "an earlier `viiwork init` was interrupted while it put its files in place: that was completed"
    else:
        journal.undo()
        said = "an earlier `viiwork init` was interrupted: what it had begun to write was removed"
    end(path)
    return said


def end(path: Path) -> None:
    """The run is over."""
    path.unlink()
    settle([path.parent])


def _read(path: Path) -> Journal:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Journal, dec_hook=as_path)
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}", remedy="remove it once no wizard runs") from error


def _step(file: WrittenFile, *, kept: bool) -> Step:
    staged = file.path.with_name(f".{file.path.name}.viiwork-new")
    backup = _free(file.path) if os.path.lexists(file.path) else None
    return Step(file.path, staged, digest(file.text), backup, kept)


def _free(path: Path) -> Path:
    """A name for a backup that nothing has."""
    names = (f"{path.name}.backup{f'-{number}' if number else ''}" for number in range(10_000))
    return next(place for name in names if not os.path.lexists(place := path.with_name(name)))


def _second_name(path: Path, backup: Path) -> None:
    try:
        os.link(path, backup, follow_symlinks=False)
    except FileNotFoundError:
        raise
    except (OSError, NotImplementedError):
        # Some file systems know no second names.
        shutil.copy2(path, backup, follow_symlinks=False)
        settle_file(backup)


def _undo(step: Step) -> None:
    if step.backup is not None and os.path.lexists(step.backup):
        if not step.staged.exists():
            step.backup.replace(step.path)
        # A rename between two names of one file does nothing.
        step.backup.unlink(missing_ok=True)
    elif step.backup is None and not step.staged.exists() and digest_of(step.path) == step.sha256:
        step.path.unlink()
    step.staged.unlink(missing_ok=True)

"""What keeps a node running: the part that all service managers have in common."""

from __future__ import annotations

import shlex
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

from viiwork_core.errors import ViiworkError
from viiwork_core.setup.locations import Locations
from viiwork_core.setup.written import WrittenFile

Show = Callable[[str], None]
"""Prints one line to the operator."""

STOPPING_S: Final = 150.0
"""What a node may need to stop beyond the time that its running requests get: 120 s for engines, some for itself."""

COMMAND_S: Final = 600.0
"""Of one command of a service manager; that of Docker may build an image."""

_PROGRAMS: Final = ("/usr/local/bin", "/usr/bin", "/bin", "/usr/sbin", "/sbin", "/opt/rocm/bin", "/opt/homebrew/bin")
_TAIL_BYTES: Final = 16 << 10


class ServiceFailed(ViiworkError):
    """A service manager refused, or is not there."""

    code = "service"


@dataclass(frozen=True, slots=True)
class Subject:
    """The node that is to be kept running."""

    locations: Locations
    program: Path
    """The `viiwork` command, absolute."""

    vendor: str = "none"
    """nvidia, amd, apple or none: whose cards it uses."""

    models: Path | None = None
    """The folder of models, so that it stays readable where the rest of a home is not."""

    reads: tuple[Path, ...] = ()
    """Models, and what else an engine opens that lies elsewhere."""

    programs: tuple[Path, ...] = ()
    """Programs that the node starts: the engines'."""

    port: int = 8086
    dockerfile: str = ""
    """Text of the recipe for an image with the engines, from a plugin (`Recognizes.dockerfile`); empty: the node
    alone."""

    grace_s: float = 60.0
    """health.respawn_grace: how long running requests may hold up a stop."""

    @property
    def search_path(self) -> str:
        """PATH of the node: a service manager has one of its own, without the engines' folders."""
        own = (program.parent for program in (*self.programs, self.program))
        return ":".join(dict.fromkeys([*map(str, own), *_PROGRAMS]))

    @property
    def stop_s(self) -> int:
        """Seconds after which a stop that has not come to its end is one by force."""
        return round(self.grace_s + STOPPING_S)


class Service(ABC):
    """One way to keep a node running. Commands are shown before they run, and hold no secret."""

    name: ClassVar[str]
    """Stable: it stands in the manifest, and `viiwork init` takes it as an answer."""

    description: ClassVar[str]
    """One sentence for whoever chooses."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject

    @classmethod
    @abstractmethod
    def unavailable(cls, locations: Locations) -> str:
        """Why this machine cannot be served so, in one sentence; empty: it can."""

    @abstractmethod
    def files(self) -> tuple[WrittenFile, ...]:
        """What it needs on disk, beside the configuration and the environment."""

    @abstractmethod
    def start(self, show: Show) -> None:
        """Start the node now and, where the manager can, at each start of the machine. Raises ServiceFailed."""

    @abstractmethod
    def stop(self, show: Show) -> None:
        """Stop it, and keep it from coming back. Nothing where none runs. Raises ServiceFailed."""

    @abstractmethod
    def is_active(self) -> bool:
        """Whether the manager keeps a node running now."""

    @abstractmethod
    def log_hint(self) -> str:
        """The command by which its log is read."""

    @abstractmethod
    def last_words(self) -> str:
        """The last lines of the node's log; empty: they cannot be had."""

    def remains(self) -> tuple[str, ...]:
        """What starting it made and removing its files leaves, a few words each."""
        return ()

    def forget(self, show: Show) -> None:  # noqa: B027 - most managers keep nothing of a file that has gone
        """Called once its files have gone."""

    def notes(self) -> tuple[str, ...]:
        """Sentences that the operator should know before saying yes."""
        return ()


def run(argv: Sequence[str], show: Show, *, timeout_s: float = COMMAND_S) -> str:
    """Show a command, run it, and return what it wrote. Raises ServiceFailed with its words."""
    show(f"$ {shlex.join(argv)}")
    done = attempt(argv, timeout_s=timeout_s)
    if done.returncode:
        words = done.stdout.strip()[-2000:] or f"exit status {done.returncode}"
        raise ServiceFailed(f"{shlex.join(argv)}: {words}", remedy="correct what it names, then run it again")
    return done.stdout


def tail(log: Path, *, lines: int = 10) -> str:
    """The last lines of a file, of 16 KiB at most; empty where it cannot be read."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - _TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-lines:])


def attempt(argv: Sequence[str], *, timeout_s: float = 30.0) -> subprocess.CompletedProcess[str]:
    """Run a command without showing it; status 127 where it is not there or does not end in time."""
    try:
        return subprocess.run(  # noqa: S603 - fixed programs; every argument is a path or a name of our own
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(argv, 127, str(error), "")

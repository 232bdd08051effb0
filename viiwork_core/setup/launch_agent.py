"""launchd keeps a node running on a Mac, as an agent of the user who is logged in."""

from __future__ import annotations

import os
import platform
import plistlib
from pathlib import Path
from typing import ClassVar, Final

from viiwork_core.setup.locations import Locations
from viiwork_core.setup.service import Service, ServiceFailed, Show, attempt, run, tail
from viiwork_core.setup.written import WrittenFile

LABEL: Final = "fi.viiwork.node"
_OPEN_FILES: Final = 8192
_SHELL: Final = 'set -a; [ ! -f "$0" ] || . "$0"; exec "$@"'
"""The shell reads the secrets out of a file of the user's own, so that they stand neither in the agent nor in a command
line. In a mesh without a secret there is no such file."""


class LaunchAgent(Service):
    """An agent of this user. Metal, and so the GPU, belongs to whoever is logged in: a daemon would not have it."""

    name: ClassVar[str] = "launchd"
    description = "a LaunchAgent of this user: starts at login, and again after a crash"

    @classmethod
    def unavailable(cls, locations: Locations) -> str:
        if platform.system() != "Darwin":
            return "launchd runs on a Mac only"
        if locations.system:
            return "the GPU belongs to the user who is logged in: run `viiwork init` without sudo"
        return "" if locations.base == Path("/") else f"launchd does not read {locations.base}"

    def files(self) -> tuple[WrittenFile, ...]:
        text = plistlib.dumps(self._agent(), sort_keys=False).decode()
        return (WrittenFile(self._path, text, 0o600),)

    @property
    def _path(self) -> Path:
        return self.subject.locations.agents / f"{LABEL}.plist"

    @property
    def _domain(self) -> str:
        return f"gui/{os.getuid()}"

    def _agent(self) -> dict[str, object]:
        subject, places = self.subject, self.subject.locations
        program = (str(subject.program), "serve", "--config", str(places.config), "--log-json")
        return {
            "Label": LABEL,
            "ProgramArguments": ["/bin/sh", "-c", _SHELL, str(places.environment), *program],
            "EnvironmentVariables": {"PATH": subject.search_path},
            "RunAtLoad": True,
            # Again after a crash, not after an orderly end.
            "KeepAlive": {"SuccessfulExit": False},
            "ThrottleInterval": 10,
            # Seconds between SIGTERM and SIGKILL: answers that run may end.
            "ExitTimeOut": subject.stop_s,
            # Else macOS may move it to the slow cores when no window is in front.
            "ProcessType": "Interactive",
            "SoftResourceLimits": {"NumberOfFiles": _OPEN_FILES},
            "Umask": 0o077,
            "WorkingDirectory": str(places.home),
            "StandardOutPath": str(places.log),
            "StandardErrorPath": str(places.log),
        }

    def start(self, show: Show) -> None:
        # launchd refuses an agent that is loaded, and its folder has to be there before it opens the log.
        self.stop(show)
        self.subject.locations.log.parent.mkdir(parents=True, exist_ok=True)
        try:
            run(("launchctl", "bootstrap", self._domain, str(self._path)), show)
        except ServiceFailed as error:
            remedy = "log in on the Mac's own screen once: over ssh alone there is no session with a GPU"
            raise ServiceFailed(error.message, remedy=remedy) from error

    def stop(self, show: Show) -> None:
        # Unloaded, not ended: KeepAlive would start it again at once.
        if self.is_active():
            run(("launchctl", "bootout", f"{self._domain}/{LABEL}"), show, timeout_s=self.subject.stop_s + 30)

    def is_active(self) -> bool:
        return attempt(("launchctl", "print", f"{self._domain}/{LABEL}")).returncode == 0

    def log_hint(self) -> str:
        return f"tail -f {self.subject.locations.log}"

    def last_words(self) -> str:
        return tail(self.subject.locations.log)

    def remains(self) -> tuple[str, ...]:
        return (f"the log {self.subject.locations.log}",)

    def notes(self) -> tuple[str, ...]:
        return (
            "the node runs while this user is logged in",
            "a Mac that sleeps answers nobody; to keep it awake: sudo pmset -a sleep 0",
        )

"""A node in the background, where no service manager runs: in a container, in a namespace of its own."""

from __future__ import annotations

import os
import shlex
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import ClassVar, Final

import msgspec
import psutil

from viiwork_core.config.env_file import read_env_file
from viiwork_core.setup.locations import Locations
from viiwork_core.setup.service import Service, ServiceFailed, Show, tail
from viiwork_core.setup.written import WrittenFile

PID_FILE: Final = "viiwork.pid"
_KILLED_S: Final = 10.0
_LOOK_S: Final = 0.1


class _Noted(msgspec.Struct, frozen=True):
    """The process that was started. A pid alone may be another program's by now."""

    pid: int
    began: float


class BackgroundProcess(Service):
    """A process that outlives the terminal, and not the machine."""

    name: ClassVar[str] = "process"
    description = "a background process: nothing starts it again, neither after a crash nor with the machine"

    @classmethod
    def unavailable(cls, locations: Locations) -> str:
        del locations
        return ""

    def files(self) -> tuple[WrittenFile, ...]:
        return ()

    def start(self, show: Show) -> None:
        """Start the node. That it lives is for whoever waits for it to see."""
        if self.is_active():
            return
        subject, places = self.subject, self.subject.locations
        argv = (str(subject.program), "serve", "--config", str(places.config))
        show(f"$ {shlex.join(argv)} >> {shlex.quote(str(places.log))} 2>&1 &")
        try:
            places.state.mkdir(parents=True, exist_ok=True)
            pid = self._spawn(argv, {**os.environ, **read_env_file(places.environment)})
            self._note(pid)
        except OSError as error:
            what = f"{error.filename or subject.program}: {error.strerror}: the node cannot be started"
            raise ServiceFailed(what, remedy="see that it is there and may be run") from error

    def _spawn(self, argv: tuple[str, ...], environ: Mapping[str, str]) -> int:
        """Its process id. Not by subprocess, whose object would want to see the end of it."""
        log = self.subject.locations.log
        log.parent.mkdir(parents=True, exist_ok=True)
        actions = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ]
        return os.posix_spawn(argv[0], argv, environ, file_actions=actions, setsid=True)

    def stop(self, show: Show) -> None:
        process = self._process()
        if process is None:
            return
        show(f"$ kill {process.pid}")
        with suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGTERM)
            if not self._ends(self.subject.stop_s):
                # Its engines end with it.
                show(f"$ kill -KILL {process.pid}")
                process.kill()
                self._ends(_KILLED_S)
        self._pid_file.unlink(missing_ok=True)

    def _ends(self, within_s: float) -> bool:
        """Not psutil's own wait, for which a process that nobody has reaped goes on."""
        deadline = time.monotonic() + within_s
        while self.is_active():
            if time.monotonic() > deadline:
                return False
            time.sleep(_LOOK_S)
        return True

    def is_active(self) -> bool:
        return self._process() is not None

    def log_hint(self) -> str:
        return f"tail -f {self.subject.locations.log}"

    def last_words(self) -> str:
        return tail(self.subject.locations.log)

    def notes(self) -> tuple[str, ...]:
        return (
            "the node does not survive a restart of the machine, nor is it started again after a crash",
            f"its log, {self.subject.locations.log}, grows without limit",
        )

    @property
    def _pid_file(self) -> Path:
        return self.subject.locations.state / PID_FILE

    def _note(self, pid: int) -> None:
        began = 0.0
        with suppress(psutil.NoSuchProcess):
            began = psutil.Process(pid).create_time()
        self._pid_file.write_bytes(msgspec.json.encode(_Noted(pid, began)))

    def _process(self) -> psutil.Process | None:
        """The process that was started, while it runs."""
        try:
            noted = msgspec.json.decode(self._pid_file.read_bytes(), type=_Noted)
            process = psutil.Process(noted.pid)
            if process.create_time() != noted.began:
                return None
            # Until its parent looks, a process that has ended keeps its pid; that parent may be this one.
            with suppress(ChildProcessError):
                os.waitpid(noted.pid, os.WNOHANG)
            return None if process.status() == psutil.STATUS_ZOMBIE else process
        except (OSError, msgspec.DecodeError, psutil.Error):
            return None

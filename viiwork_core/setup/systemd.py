"""systemd keeps a node running: as a hardened service of the machine, or as one of a user."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, Final

from viiwork_core.setup.access import Access
from viiwork_core.setup.locations import Locations
from viiwork_core.setup.service import Service, Show, attempt, run
from viiwork_core.setup.written import WrittenFile

UNIT: Final = "viiwork.service"
NVIDIA_UNIT: Final = "viiwork-nvidia.service"
USER: Final = "viiwork"
"""The account that a node runs as, unless the models can only be read by another one."""

OPEN_FILES: Final = 65_536
_WRITTEN: Final = "# Written by `viiwork init`. `viiwork uninstall` removes it."
_HARDENING: Final = """\
NoNewPrivileges=yes
CapabilityBoundingSet=
AmbientCapabilities=
ProtectSystem=strict
PrivateTmp=yes
ProtectKernelTunables=yes
ProtectKernelModules=yes
ProtectKernelLogs=yes
ProtectControlGroups=yes
ProtectClock=yes
ProtectHostname=yes
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX AF_NETLINK
LockPersonality=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallErrorNumber=EPERM
KeyringMode=private
"""
"""Not among it: MemoryDenyWriteExecute and PrivateDevices, under which no GPU driver works."""

_DEVICES: Final = {
    "amd": ("char-drm", "char-kfd"),
    "nvidia": ("char-nvidia*", "char-drm"),
}
"""Device groups by vendor, as /proc/devices calls them: /dev/dri and /dev/kfd; /dev/nvidia*."""


class Systemd(Service):
    """What both have in common."""

    command: ClassVar[tuple[str, ...]]

    def start(self, show: Show) -> None:
        run((*self.command, "daemon-reload"), show)
        run((*self.command, "enable", "--now", UNIT), show)

    def stop(self, show: Show) -> None:
        run((*self.command, "disable", "--now", UNIT), show, timeout_s=self.subject.stop_s + 30)

    def forget(self, show: Show) -> None:
        run((*self.command, "daemon-reload"), show)

    def is_active(self) -> bool:
        # "activating" too: between two attempts at a start.
        return attempt((*self.command, "is-active", UNIT)).stdout.strip() in {"active", "activating", "reloading"}

    def _service(self) -> Iterator[str]:
        subject, places = self.subject, self.subject.locations
        yield "Type=exec"
        yield f"ExecStart={quoted(subject.program)} serve --config {_argument(places.config)}"
        yield "ExecReload=kill -HUP $MAINPID"
        # The secret stands in that file, which only its owner can read, and in no command line.
        yield f"EnvironmentFile=-{escaped(places.environment)}"
        yield f'Environment="PATH={escaped(subject.search_path)}"'
        yield "Restart=on-failure"
        yield "RestartSec=5"
        # The node ends its engines itself, after the requests that run there.
        yield "KillMode=mixed"
        yield f"TimeoutStopSec={subject.stop_s}"
        # An engine that ran out of memory is started again by the node.
        yield "OOMPolicy=continue"
        yield f"LimitNOFILE={OPEN_FILES}"


class SystemUnit(Systemd):
    """A service of the machine."""

    name = "systemd"
    description = "a systemd service: starts with the machine, and again after a crash; hardened"
    command = ("systemctl",)

    @classmethod
    def unavailable(cls, locations: Locations) -> str:
        if not Path("/run/systemd/system").is_dir():
            return "systemd does not run this machine"
        if not locations.system:
            return "it takes root: run `viiwork init` with sudo"
        return "" if locations.base == Path("/") else f"systemd does not read {locations.base}"

    def files(self) -> tuple[WrittenFile, ...]:
        places = self.subject.locations
        found = [WrittenFile(places.units / UNIT, self._unit())]
        if self._user() == USER:
            found.append(WrittenFile(places.accounts, f'u {USER} - "viiwork node" {places.state}\n'))
        if self.subject.vendor == "nvidia":
            found.append(WrittenFile(places.units / NVIDIA_UNIT, _nvidia_unit()))
        return tuple(found)

    def start(self, show: Show) -> None:
        if self._user() == USER:
            run(("systemd-sysusers", str(self.subject.locations.accounts)), show)
        super().start(show)

    def log_hint(self) -> str:
        return f"journalctl -u {UNIT} -f"

    def last_words(self) -> str:
        return _journal("-u")

    def remains(self) -> tuple[str, ...]:
        return (f"the account {USER}",) if self.subject.locations.accounts.exists() else ()

    def notes(self) -> tuple[str, ...]:
        user = self._user()
        if user == USER:
            return (f"the node runs as the user {USER}, which is made for it",)
        closed = self._access().closed
        return (f"the node runs as {user}, since other users cannot read {closed}",)

    def _access(self) -> Access:
        subject = self.subject
        models = () if subject.models is None else (subject.models,)
        programs = (subject.program, *subject.programs, *map(Path, _python()))
        return Access.to((*models, *subject.reads), programs)

    def _user(self) -> str:
        return self._access().owner or USER

    def _unit(self) -> str:
        lines = (_WRITTEN, *self._head(), "", "[Service]", *self._service(), *self._confined(), *_INSTALL)
        return "\n".join(lines) + "\n"

    def _head(self) -> Iterator[str]:
        first = f" {NVIDIA_UNIT}" if self.subject.vendor == "nvidia" else ""
        yield "[Unit]"
        yield "Description=viiwork node"
        yield f"Wants=network-online.target{first}"
        yield f"After=network-online.target tailscaled.service{first}"
        # A configuration that is refused is not tried for ever.
        yield "StartLimitIntervalSec=300"
        yield "StartLimitBurst=10"

    def _confined(self) -> Iterator[str]:
        places, access = self.subject.locations, self._access()
        yield f"User={self._user()}"
        if groups := access.groups:
            yield f"SupplementaryGroups={' '.join(groups)}"
        yield from self._state()
        yield "CacheDirectory=viiwork"
        # Drivers keep compiled kernels in the home folder, which may be out of reach.
        yield f"Environment=HOME={escaped(places.state)} XDG_STATE_HOME=%S XDG_CACHE_HOME=%C/viiwork"
        yield f"WorkingDirectory={escaped(places.state)}"
        yield "UMask=0022"
        yield "LimitMEMLOCK=infinity"
        yield from _HARDENING.splitlines()
        yield from self._home(access)
        yield from self._devices()

    def _state(self) -> Iterator[str]:
        """The state folder, which systemd makes for the node's user where it is one of systemd's own."""
        state = self.subject.locations.state
        if state.parent == Path("/var/lib"):
            yield f"StateDirectory={escaped(state.name)}"
            yield "StateDirectoryMode=0755"
            return
        yield f"ExecStartPre=+install --directory --mode=0755 --owner={self._user()} {_argument(state)}"
        yield f"ReadWritePaths=-{quoted(state)}"

    def _home(self, access: Access) -> Iterator[str]:
        """Homes are not seen, but for what the node needs of them."""
        if not access.in_homes:
            yield "ProtectHome=yes"
            return
        yield "ProtectHome=tmpfs"
        yield f"BindReadOnlyPaths={' '.join(map(quoted, access.in_homes))}"

    def _devices(self) -> Iterator[str]:
        yield "DevicePolicy=closed"
        for group in _DEVICES.get(self.subject.vendor, ()):
            yield f"DeviceAllow={group} rw"


class UserUnit(Systemd):
    """A service of one user."""

    name = "systemd-user"
    description = "a systemd service of this user: again after a crash; with the machine where lingering is allowed"
    command = ("systemctl", "--user")

    @classmethod
    def unavailable(cls, locations: Locations) -> str:
        if locations.system:
            return "root has the machine's own services"
        if not Path(f"/run/user/{os.getuid()}/systemd").is_dir():
            return "no systemd runs for this user"
        return "" if locations.base == Path("/") else f"systemd does not read {locations.base}"

    def files(self) -> tuple[WrittenFile, ...]:
        lines = (
            *(_WRITTEN, "[Unit]", "Description=viiwork node", "StartLimitIntervalSec=300", "StartLimitBurst=10", ""),
            *("[Service]", *self._service(), "NoNewPrivileges=yes", "UMask=0077", ""),
            *("[Install]", "WantedBy=default.target"),
        )
        return (WrittenFile(self.subject.locations.units / UNIT, "\n".join(lines) + "\n"),)

    def start(self, show: Show) -> None:
        super().start(show)
        linger = ("loginctl", "enable-linger")
        show(f"$ {shlex.join(linger)}")
        if attempt(linger).returncode:
            show("the node ends when you log out; to keep it: sudo loginctl enable-linger $USER")

    def log_hint(self) -> str:
        return f"journalctl --user -u {UNIT} -f"

    def last_words(self) -> str:
        return _journal("--user", "-u")

    def remains(self) -> tuple[str, ...]:
        return ("lingering of this user: loginctl disable-linger ends it",)


def _journal(*options: str) -> str:
    found = attempt(("journalctl", *options, UNIT, "-n", "10", "--no-pager", "--output", "cat"))
    return "" if found.returncode else found.stdout.strip()


_INSTALL: Final = ("", "[Install]", "WantedBy=multi-user.target")


def _nvidia_unit() -> str:
    """Loads the driver's module for CUDA before the node's devices are settled: its number is not known until then,
    and the program that loads it may not be started by a service without privileges."""
    program = shutil.which("nvidia-modprobe") or "/usr/bin/nvidia-modprobe"
    lines = (
        *(_WRITTEN, "[Unit]", "Description=Device files of NVIDIA cards, for viiwork", f"Before={UNIT}", ""),
        *("[Service]", "Type=oneshot", "RemainAfterExit=yes", f"ExecStart=-{escaped(Path(program))} -u -c 0"),
    )
    return "\n".join(lines) + "\n"


def _python() -> set[str]:
    """Where this Python and what it imports lie."""
    return {sys.prefix, sys.base_prefix, *(place for place in sys.path if place.startswith("/"))}


def escaped(value: Path | str) -> str:
    """A value of a unit file: % stands for itself."""
    return str(value).replace("%", "%%")


def quoted(path: Path) -> str:
    """A word of a unit file, whatever stands in it."""
    text = escaped(path).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'


def _argument(path: Path) -> str:
    """An argument in a unit file, where $ begins a variable, as it does not in the program's name."""
    return quoted(path).replace("$", "$$")

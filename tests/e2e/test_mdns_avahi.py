"""A foreign mDNS program, Avahi, sees nodes and is seen by them."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from hosts import Host, Hosts
from mdns import beside, card, on, seen, source
from nodes import until

from viiwork_core import Sighting

BUS = """\
<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig>
  <type>system</type><listen>unix:path={path}</listen><auth>EXTERNAL</auth>
  <policy context="default">
    <allow user="*"/><allow own="*"/><allow send_type="*"/><allow receive_type="*"/><allow send_destination="*"/>
  </policy>
</busconfig>
"""

AVAHI = """\
[server]
host-name=foreign
allow-interfaces=viiwork0
[wide-area]
enable-wide-area=no
"""


@pytest.fixture
def avahi(cable: Hosts, tmp_path: Path) -> Iterator[Avahi]:
    """Avahi on the second machine, with a message bus of its own."""
    missing = [
        name for name in ("avahi-daemon", "avahi-publish", "avahi-browse", "dbus-daemon") if not shutil.which(name)
    ]
    if missing:
        pytest.skip(f"Avahi is not installed: there is no {missing[0]} (Debian: avahi-daemon avahi-utils dbus)")
    with ExitStack() as stack:
        made = Avahi(cable.second, tmp_path, stack)
        made.start()
        yield made


class Avahi:
    """avahi-daemon in a machine's network."""

    def __init__(self, host: Host, folder: Path, stack: ExitStack) -> None:
        self.host, self.folder, self._stack = host, folder, stack
        self._environ = {"PATH": os.environ["PATH"], "DBUS_SYSTEM_BUS_ADDRESS": f"unix:path={folder}/bus"}

    def start(self) -> None:
        (self.folder / "bus.conf").write_text(BUS.format(path=self.folder / "bus"))
        (self.folder / "avahi.conf").write_text(AVAHI)
        self._run("bus.log", "dbus-daemon", f"--config-file={self.folder}/bus.conf", "--nofork", "--nopidfile")
        until((self.folder / "bus").exists, "there is a message bus")
        # Its file of the process lies at a fixed place, where one of the machine's own may lie.
        own = "mkdir -p /run/avahi-daemon && mount -t tmpfs none /run/avahi-daemon && exec"
        daemon = f"avahi-daemon -f {self.folder}/avahi.conf --no-drop-root --no-chroot --no-rlimits"
        log = self._run("avahi.log", "unshare", "--mount", "sh", "-c", f"{own} {daemon}")
        until(lambda: "Server startup complete" in log.read_text(), f"Avahi starts: {log.read_text()}")

    def publish(self, name: str, port: int, *text: str) -> None:
        log = self._run("publish.log", "avahi-publish", "--service", name, "_viiwork._tcp", str(port), *text)
        until(lambda: "Established" in log.read_text(), f"it is published: {log.read_text()}")

    def browse(self) -> list[list[str]]:
        """What it resolves, a list of fields for each."""
        command = ["avahi-browse", "--resolve", "--terminate", "--parsable", "--no-db-lookup", "_viiwork._tcp"]
        run = subprocess.run(command, env=self._environ, capture_output=True, check=True, text=True, timeout=60)
        return [line.split(";") for line in run.stdout.splitlines() if line.startswith("=")]

    def _run(self, log: str, *command: str) -> Path:
        """A process that ends with the test, and the file that it writes to."""
        path = self.folder / log
        with path.open("wb") as out, self.host.inside():
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=self._environ)
        self._stack.callback(process.wait)
        self._stack.callback(process.terminate)
        return path


@pytest.mark.slow
@pytest.mark.parametrize("name", ["box", 'gpu.lan "box" Größe', "x" * 63])
def test_avahi_is_seen(cable: Hosts, avahi: Avahi, tmp_path: Path, name: str) -> None:
    avahi.publish(name, 7947, f"node={name}")

    async def first() -> set[Sighting]:
        async with source(tmp_path) as made:
            await made.announce(card("192.0.2.1:7946"))
            return await seen(made, bool)

    assert on(cable.first, first) == {Sighting("192.0.2.2:7947", "mdns", hint=name)}


@pytest.mark.slow
def test_avahi_sees_a_node_and_its_end(cable: Hosts, avahi: Avahi, tmp_path: Path) -> None:
    with beside(cable.first, tmp_path, card("192.0.2.1:7946", "gpu 1")):
        found = until(avahi.browse, "Avahi sees it")
    fields = {(kind, name, host, address, port) for _, _, kind, name, _, _, host, address, port, _ in found}
    assert ("IPv4", r"gpu\0321", "viiwork-gpu 1.local", "192.0.2.1", "7946") in {
        (kind, name, host.replace(r"\032", " "), address, port) for kind, name, host, address, port in fields
    }
    assert any('"node=gpu 1"' in line[9] and '"mesh=default"' in line[9] for line in found)
    until(lambda: not avahi.browse(), "Avahi hears its goodbye")


@pytest.mark.slow
def test_a_name_that_avahi_has_is_not_taken_from_it(cable: Hosts, avahi: Avahi, tmp_path: Path) -> None:
    avahi.publish("box", 7947)
    with beside(cable.first, tmp_path, card("192.0.2.1:7946", "box")):
        names = until(lambda: named(avahi) if len(named(avahi)) == 2 else None, "both are there")
    assert names == {"box": "7947", "box-work-box": "7946"}


@pytest.mark.slow
def test_a_node_shares_a_machine_with_avahi(cable: Hosts, avahi: Avahi, tmp_path: Path) -> None:
    """Both have UDP port 5353."""
    avahi.publish("box", 7947)
    both = {"192.0.2.2:7946", "192.0.2.2:7947"}

    async def first() -> set[str]:
        async with source(tmp_path) as made:
            await made.announce(card("192.0.2.1:7946"))
            return {one.address for one in await seen(made, lambda found: len(found) == len(both))}

    with beside(cable.second, tmp_path, card("192.0.2.2:7946", "there")):
        assert on(cable.first, first) == both
        assert until(lambda: {"box", "there"} <= named(avahi).keys(), "Avahi sees the node beside it")


def named(avahi: Avahi) -> dict[str, str]:
    return {fields[3]: fields[8] for fields in avahi.browse()}

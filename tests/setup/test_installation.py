"""Files are written all or not at all, whatever happens meanwhile, and one wizard at a time."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from machine import OLD, SECRET, files, on, places_of, prepare, recover, remove, write

from viiwork_core.errors import ConfigError, ViiworkError
from viiwork_core.setup.installation import Installation
from viiwork_core.setup.locations import Locations
from viiwork_core.setup.process import BackgroundProcess
from viiwork_core.setup.service import Subject

HERE = Path(__file__).parent
PROGRAM = Path("/opt/viiwork/bin/viiwork")


@pytest.fixture
def base(tmp_path: Path) -> Path:
    folder = tmp_path / "machine"
    prepare(folder)
    return folder


@pytest.fixture
def before(base: Path) -> dict[str, tuple[int, str]]:
    return on(base)


def whole(base: Path) -> set[str]:
    """The names of what lies on a machine that was set up."""
    write(base)
    return set(on(base))


def test_all_of_it_is_there_with_its_modes_and_a_backup(base: Path) -> None:
    write(base)
    found = on(base)
    assert found["etc/viiwork/viiwork.yaml"] == (0o644, "node: {name: attic}\n")
    assert found["etc/viiwork/viiwork.env"] == (0o600, f"VIIWORK_MESH_SECRET={SECRET}\n")
    assert found["etc/viiwork/viiwork.yaml.backup"][1] == OLD["etc/viiwork/viiwork.yaml"]
    assert found["etc/viiwork/other"][1] == OLD["etc/viiwork/other"]
    assert {name for name in found if name.startswith("var/lib/viiwork-setup/")} == {
        "var/lib/viiwork-setup/",
        "var/lib/viiwork-setup/manifest.json",
        "var/lib/viiwork-setup/lock",
    }
    assert found["var/lib/viiwork-setup/manifest.json"][0] == 0o600
    assert SECRET not in found["var/lib/viiwork-setup/manifest.json"][1]
    assert stat.S_IMODE((base / "var/lib/viiwork-setup").stat().st_mode) == 0o700


def test_folders_can_be_passed_by_the_nodes_user_whatever_the_umask(base: Path) -> None:
    before = os.umask(0o077)
    try:
        write(base)
    finally:
        os.umask(before)
    assert stat.S_IMODE((base / "etc/systemd/system").stat().st_mode) == 0o755
    assert stat.S_IMODE((base / "etc/viiwork/viiwork.yaml").stat().st_mode) == 0o644


def test_looking_changes_nothing(base: Path, before: dict[str, tuple[int, str]]) -> None:
    places = places_of(base)
    with Installation.held(places) as installation:
        assert installation.manifest is None
        assert installation.in_the_way(files(places)) == (places.config,)
    assert on(base) == before


def test_a_second_wizard_is_told_so(base: Path) -> None:
    with Installation.held(places_of(base)):
        with pytest.raises(ConfigError, match="another `viiwork init` or `viiwork uninstall` runs"):
            write(base)
        # In another process too.
        code = f"import sys; sys.path.insert(0, {str(HERE)!r}); from machine import write; from pathlib import Path\n"
        code += f"write(Path({str(base)!r}))"
        other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert "another `viiwork init`" in other.stderr
    write(base)


def test_what_is_written_again_keeps_the_first_backup_and_makes_no_other(base: Path) -> None:
    write(base)
    first = set(on(base))
    places = places_of(base)
    with Installation.held(places) as installation:
        assert installation.in_the_way(files(places)) == ()
        installation.write(files(places, "node: {name: cellar}\n"), BackgroundProcess(Subject(places, PROGRAM)))
        assert installation.manifest is not None
        entry = installation.manifest.entry(places.config)
    assert entry is not None
    assert entry.backup == base / "etc/viiwork/viiwork.yaml.backup"
    assert set(on(base)) == first
    assert places.config.read_text() == "node: {name: cellar}\n"


def test_a_file_that_was_changed_by_hand_is_backed_up_too(base: Path) -> None:
    write(base)
    places_of(base).config.write_text("node: {name: by-hand}\n")
    write(base)
    assert (base / "etc/viiwork/viiwork.yaml.backup-1").read_text() == "node: {name: by-hand}\n"


def test_what_an_earlier_run_wrote_is_not_forgotten(base: Path) -> None:
    write(base)
    places = places_of(base)
    with Installation.held(places) as installation:
        installation.write(files(places)[:2], BackgroundProcess(Subject(places, PROGRAM)))
        assert installation.manifest is not None
        assert installation.manifest.entry(places.units / "viiwork.service") is not None
        assert base / "etc/systemd/system" in installation.manifest.folders


@pytest.mark.parametrize(
    ("number", "often"),
    [
        (signal.SIGKILL, "once"),
        (signal.SIGTERM, "once"),
        (signal.SIGINT, "once"),
        pytest.param(signal.SIGKILL, "twice", marks=pytest.mark.slow),
    ],
)
def test_a_wizard_that_is_killed_at_any_moment_leaves_all_or_nothing(
    tmp_path: Path, number: signal.Signals, often: str
) -> None:
    """twice: so is the one after it, while it clears up."""
    doomed = [sys.executable, str(HERE / "doomed_wizard.py"), str(tmp_path), str(int(number)), often]
    steps = int(subprocess.run(doomed, stdout=subprocess.PIPE, check=True).stdout)
    assert steps >= 10
    prepare(tmp_path / "untouched")
    nothing, everything = on(tmp_path / "untouched"), whole(tmp_path / str(steps + 1))
    ends, said = set(), set()
    for left in tmp_path.glob("[0-9]*"):
        # The file itself is the old one or the new one, also before anybody has cleared up.
        assert places_of(left).config.read_text() in {OLD["etc/viiwork/viiwork.yaml"], "node: {name: attic}\n"}
        said.add(recover(left))
        found = on(left)
        assert found == nothing or set(found) == everything, left
        ends.add("nothing" if found == nothing else "everything")
    assert ends == {"nothing", "everything"}
    if number == signal.SIGKILL:
        assert {words.partition(": ")[0] for words in said} >= {
            "an earlier `viiwork init` was interrupted",
            "an earlier `viiwork init` was interrupted while it put its files in place",
        }
    else:
        # What can wait waits until all is there: it ends the wizard before the first step or after the last.
        assert said == {""}


def test_the_run_after_one_that_was_killed_writes_all(tmp_path: Path) -> None:
    doomed = [sys.executable, str(HERE / "doomed_wizard.py"), str(tmp_path), str(int(signal.SIGKILL)), "once"]
    steps = int(subprocess.run(doomed, stdout=subprocess.PIPE, check=True).stdout)
    everything = whole(tmp_path / str(steps + 1))
    for number in range(1, steps + 1):
        assert whole(tmp_path / str(number)) == everything, number


def test_the_run_after_an_uninstall_that_was_killed_removes_the_rest(tmp_path: Path) -> None:
    doomed = [sys.executable, str(HERE / "doomed_wizard.py"), str(tmp_path), str(int(signal.SIGKILL)), "removing"]
    steps = int(subprocess.run(doomed, stdout=subprocess.PIPE, check=True).stdout)
    assert steps >= 5
    for number in range(1, steps + 2):
        base = tmp_path / str(number)
        remove(base)
        assert set(on(base)) == {
            *("etc/", "etc/viiwork/", "etc/viiwork/other", "etc/viiwork/viiwork.yaml.backup", "var/", "var/lib/"),
        }, number


@pytest.mark.parametrize("room", [0, 5, 40, 300])
def test_a_file_that_does_not_fit_leaves_nothing(base: Path, before: dict[str, tuple[int, str]], room: int) -> None:
    """The limit of this process for the size of a file stands for a full disk: as it, it is noticed while writing."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
    try:
        with pytest.raises(ViiworkError, match="nothing was written"):
            write(base)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert on(base) == before


def test_on_a_disk_that_is_full_nothing_is_written(tmp_path: Path) -> None:
    """A real one, with fewer and fewer free pages, until the wizard no longer gets through."""
    if os.geteuid() or shutil.which("unshare") is None:
        pytest.skip("a file system in memory of one's own takes root and unshare")
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = f"mount -t tmpfs -o size=256k viiwork-test {disk} && exec {sys.executable} {HERE / 'full_disk.py'} {disk}"
    done = subprocess.run(["unshare", "--mount", "sh", "-c", mount], capture_output=True, text=True, check=False)
    if "mount:" in done.stderr:
        pytest.skip(f"nothing may be mounted here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[0] == "full"
    assert done.stdout.split()[-1] == "whole"


def test_a_place_that_cannot_be_taken_leaves_nothing(base: Path) -> None:
    (base / "etc/systemd/system/viiwork.service/in it").mkdir(parents=True)
    before = on(base)
    with pytest.raises(ViiworkError, match=r"viiwork\.service.*nothing was written"):
        write(base)
    assert on(base) == before


def test_what_is_taken_at_the_last_moment_leaves_nothing(base: Path, before: dict[str, tuple[int, str]]) -> None:
    """Files that have been put in their places by then are taken back."""
    taken = base / "etc/systemd/system/viiwork.service"
    code = f"""
import os, sys
sys.path.insert(0, {str(HERE)!r})
from pathlib import Path
from machine import write
def take(event, args):
    if event == "os.rename" and str(args[1]) == {str(taken)!r}:
        os.makedirs({str(taken / "in it")!r})
sys.addaudithook(take)
write(Path({str(base)!r}))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "Is a directory: nothing was written" in done.stderr
    shutil.rmtree(base / "etc/systemd")
    assert on(base) == before


def test_two_files_of_one_path_are_refused(base: Path, places: Locations) -> None:
    with Installation.held(places) as installation, pytest.raises(ConfigError, match="one path"):
        installation.write([*files(places), files(places)[0]], BackgroundProcess(Subject(places, PROGRAM)))


def test_a_manifest_of_another_version_is_refused(base: Path) -> None:
    write(base)
    path = base / "var/lib/viiwork-setup/manifest.json"
    path.write_text(path.read_text().replace('"version": 1', '"version": 9'))
    with pytest.raises(ConfigError, match="written by another version of viiwork"):
        write(base)


@pytest.mark.parametrize("text", ["", "{", '{"version": 1}', '{"version":1,"service":"x","program":"p","files":[]}'])
def test_a_damaged_manifest_is_no_reason_to_guess(base: Path, text: str) -> None:
    write(base)
    (base / "var/lib/viiwork-setup/manifest.json").write_text(text)
    with pytest.raises(ConfigError, match="is no manifest"):
        write(base)

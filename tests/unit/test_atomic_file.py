"""Files that are replaced in one step."""

import os
import stat
from pathlib import Path

import pytest

from viiwork_core.atomic_file import write_atomically


@pytest.mark.parametrize("settled", [True, False])
def test_the_new_content_stands_in_place_of_the_old(tmp_path: Path, settled: bool) -> None:
    path = tmp_path / "keys.json"
    write_atomically(path, b"the old, which is longer", settled=settled)
    write_atomically(path, b"the new", settled=settled)
    assert path.read_bytes() == b"the new"
    assert [found.name for found in tmp_path.iterdir()] == ["keys.json"]


def test_its_owner_alone_may_read_it_also_where_others_could_before(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    for name in ("keys.json", "keys.new"):
        (tmp_path / name).write_bytes(b"left by somebody")
        (tmp_path / name).chmod(0o666)
    write_atomically(path, b"secret")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_mode_is_less_what_the_umask_takes(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_atomically(tmp_path / "node.json", b"{}", mode=0o666)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "node.json").stat().st_mode) == 0o640


def test_a_link_in_its_way_is_not_followed(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_bytes(b"untouched")
    (tmp_path / "keys.new").symlink_to(precious)
    write_atomically(tmp_path / "keys.json", b"new")
    assert (precious.read_bytes(), (tmp_path / "keys.json").read_bytes()) == (b"untouched", b"new")


def test_where_it_cannot_be_written_the_old_one_stays(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    path.write_bytes(b"old")
    (tmp_path / "keys.new").mkdir()
    with pytest.raises(OSError, match=r"keys\.new"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"

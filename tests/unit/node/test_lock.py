"""The lock on a state folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from viiwork_core import ConfigError
from viiwork_core.node.identity import new_node_id
from viiwork_core.node.lock import locked


def test_each_run_learns_who_signed_before(tmp_path: Path) -> None:
    ids = [new_node_id() for _ in range(3)]
    for known, own in zip([None, *ids], ids, strict=False):
        with locked(tmp_path) as lock:
            assert lock.before == known
            lock.sign(own)


def test_a_run_that_came_to_nothing_does_not_hide_the_one_before(tmp_path: Path) -> None:
    with locked(tmp_path) as lock:
        lock.sign(first := new_node_id())
    with locked(tmp_path):
        pass
    with locked(tmp_path) as lock:
        assert lock.before == first


def test_a_held_folder_is_refused_and_its_holder_still_known(tmp_path: Path) -> None:
    with locked(tmp_path) as lock:
        lock.sign(holder := new_node_id())
        with (
            pytest.raises(ConfigError, match=rf"^node\.state_dir: another node runs with {tmp_path}"),
            locked(tmp_path),
        ):
            pass
    with locked(tmp_path) as lock:
        assert lock.before == holder


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"viiwork-", b"../../x\n", b"1" * 5000])
def test_a_damaged_file_names_nobody(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "node.lock").write_bytes(content)
    with locked(tmp_path) as lock:
        assert lock.before is None
        lock.sign(own := new_node_id())
    with locked(tmp_path) as lock:
        assert lock.before == own


def test_a_folder_that_cannot_hold_the_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "node.lock").mkdir()
    with pytest.raises(ConfigError, match=r"node\.state_dir: cannot open"), locked(tmp_path):
        pass

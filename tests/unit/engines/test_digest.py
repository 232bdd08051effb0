"""Digests of files and folders."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from blake3 import blake3

from viiwork_core import EngineRefused
from viiwork_core.engines.digest import Digests


def digest(state: Path, path: Path) -> str:
    return asyncio.run(Digests(state).of(path))


def test_a_file_has_the_digest_of_its_bytes(tmp_path: Path) -> None:
    file = tmp_path / "model"
    file.write_bytes(b"x" * 3_000_000)
    assert digest(tmp_path, file) == blake3(b"x" * 3_000_000).hexdigest()


def test_a_digest_is_remembered_until_size_or_time_change(tmp_path: Path) -> None:
    file = tmp_path / "model"
    file.write_bytes(b"one")
    os.utime(file, ns=(5, 5))
    first = digest(tmp_path, file)
    file.write_bytes(b"two")
    os.utime(file, ns=(5, 5))
    assert digest(tmp_path, file) == first, "same size and time: not read again"
    os.utime(file, ns=(6, 6))
    assert digest(tmp_path, file) == blake3(b"two").hexdigest()


def test_a_folder_counts_names_and_bytes_but_no_hidden_entries(tmp_path: Path) -> None:
    digests = []
    for number, (name, content) in enumerate([("a", "x"), ("a", "x"), ("b", "x"), ("a", "y")]):
        folder = tmp_path / str(number)
        (folder / "part").mkdir(parents=True)
        (folder / "part" / name).write_text(content)
        digests.append(digest(tmp_path, folder))
    (tmp_path / "0" / ".cache").mkdir()
    (tmp_path / "0" / ".cache" / "note").touch()
    (tmp_path / "0" / ".DS_Store").touch()
    assert digests[0] == digests[1] == digest(tmp_path, tmp_path / "0")
    assert len(set(digests)) == 3


@pytest.mark.parametrize("content", ["", "nonsense", "[1]", '{"x": 3}'])
def test_a_damaged_memory_is_started_anew(tmp_path: Path, content: str) -> None:
    (tmp_path / "digests.json").write_text(content)
    file = tmp_path / "model"
    file.write_bytes(b"one")
    assert digest(tmp_path, file) == blake3(b"one").hexdigest()
    assert str(file) in (tmp_path / "digests.json").read_text()


def test_what_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EngineRefused, match=r"cannot read .*missing: No such file"):
        digest(tmp_path, tmp_path / "missing")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(EngineRefused, match="pipe is not a regular file"):
        digest(tmp_path, tmp_path / "pipe")


def test_a_called_off_digest_leaves_the_thread(tmp_path: Path) -> None:
    file = tmp_path / "model"
    with file.open("wb") as out:
        out.truncate(64 * 1024**3)

    async def scene() -> str:
        digests = Digests(tmp_path)
        reading = asyncio.create_task(digests.of(file))
        await asyncio.sleep(0)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        file.write_bytes(b"short")
        return await digests.of(file)

    assert asyncio.run(scene()) == blake3(b"short").hexdigest()

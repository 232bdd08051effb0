"""The scan of a models folder, with engines of its own and anything that can lie in a folder."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from pathlib import Path

import pytest

from viiwork_core import FolderListing, FoundModel, Recognizes
from viiwork_core.errors import ConfigError
from viiwork_core.setup import scan as scans
from viiwork_core.setup.scan import DEPTH, scan
from viiwork_core.testing.fake_plugin import FakeEngine


class Whole(FakeEngine, Recognizes):
    """Each .bin file is a model; one that is called broken says so."""

    @classmethod
    def recognize(cls, folder: FolderListing) -> Sequence[FoundModel]:
        return [
            FoundModel(name[:-4], folder.path / name, size, problem="it is broken; mend it" if "broken" in name else "")
            for name, size in folder.files.items()
            if name.endswith(".bin")
        ]


class Raising(FakeEngine, Recognizes):
    @classmethod
    def recognize(cls, folder: FolderListing) -> Sequence[FoundModel]:
        raise RuntimeError("no idea")


class Elsewhere(FakeEngine, Recognizes):
    """Says it found something that is not in the folder."""

    @classmethod
    def recognize(cls, folder: FolderListing) -> Sequence[FoundModel]:
        return [FoundModel("passwd", Path("/etc/passwd"), 1)]


ENGINES = {"whole": Whole}


def put(path: Path, size: int = 1) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(size))
    return path


def names(folder: Path) -> list[str]:
    return [one.model.name for one in scan(folder, ENGINES).models]


def test_models_are_found_three_folders_deep_and_no_deeper(tmp_path: Path) -> None:
    for depth in range(DEPTH + 2):
        put(tmp_path.joinpath(*"abcde"[:depth]) / f"m{depth}.bin")
    assert names(tmp_path) == ["m3", "m2", "m1", "m0"]


def test_what_cannot_be_served_is_told_apart(tmp_path: Path) -> None:
    put(tmp_path / "good.bin", 7)
    put(tmp_path / "broken.bin")
    found = scan(tmp_path, ENGINES)
    assert [one.model.name for one in found.usable] == ["good"]
    assert [one.model.problem for one in found.broken] == ["it is broken; mend it"]
    assert (found.usable[0].engine, found.usable[0].model.bytes, found.files) == ("whole", 7, 2)


def test_what_is_no_file_is_passed_over_and_told(tmp_path: Path) -> None:
    put(tmp_path / "m.bin")
    os.mkfifo(tmp_path / "pipe.bin")
    (tmp_path / "nowhere.bin").symlink_to("gone")
    (tmp_path / "loop.bin").symlink_to("loop.bin")
    (tmp_path / "null.bin").symlink_to("/dev/null")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(os.path.relpath(tmp_path / "s.bin"))
        found = scan(tmp_path, ENGINES)
    assert [one.model.name for one in found.models] == ["m"]
    assert sorted(found.passed_over) == [
        f"{tmp_path}/loop.bin is a link to itself",
        f"{tmp_path}/nowhere.bin is a link to nothing",
        f"{tmp_path}/null.bin is a device",
        f"{tmp_path}/pipe.bin is a pipe",
        f"{tmp_path}/s.bin is a socket",
    ]


def test_links_are_followed_and_their_loops_end(tmp_path: Path) -> None:
    put(tmp_path / "blobs" / "0a1b")
    put(tmp_path / "sub" / "m.bin")
    (tmp_path / "linked.bin").symlink_to("blobs/0a1b")
    (tmp_path / "sub" / "up").symlink_to("..")
    (tmp_path / "again").symlink_to("sub")
    assert sorted(names(tmp_path)) == ["linked", "m"]


def test_hidden_entries_are_left_alone(tmp_path: Path) -> None:
    put(tmp_path / ".cache" / "m.bin")
    put(tmp_path / ".m.bin")
    assert scan(tmp_path, ENGINES).passed_over == ()
    assert names(tmp_path) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every folder")
def test_a_folder_that_may_not_be_read_is_told(tmp_path: Path) -> None:
    put(tmp_path / "m.bin")
    (tmp_path / "closed").mkdir(mode=0)
    found = scan(tmp_path, ENGINES)
    assert [one.model.name for one in found.models] == ["m"]
    assert found.passed_over == (f"{tmp_path}/closed cannot be read: Permission denied",)


@pytest.mark.parametrize(("name", "said"), [("gone", "does not exist"), ("file", "is not a folder")])
def test_what_is_no_folder_is_refused(tmp_path: Path, name: str, said: str) -> None:
    put(tmp_path / "file")
    with pytest.raises(ConfigError, match=said) as caught:
        scan(tmp_path / name, ENGINES)
    assert caught.value.remedy == "name the folder that holds the model files"


def test_ten_thousand_files(tmp_path: Path) -> None:
    for number in range(100):
        (tmp_path / f"{number}").mkdir()
        for file in range(100):
            (tmp_path / f"{number}" / f"{file}.txt").touch()
    put(tmp_path / "50" / "m.bin")
    found = scan(tmp_path, ENGINES)
    assert ([one.model.name for one in found.models], found.files) == (["m"], 10_001)


def test_more_than_is_looked_at_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scans, "MAX_ENTRIES", 20)
    for number in range(30):
        put(tmp_path / f"m{number}.bin")
    found = scan(tmp_path, ENGINES)
    assert len(found.models) == 20
    assert found.passed_over == ("only the first 20 files and folders were looked at: name a smaller folder",)


def test_many_places_that_are_passed_over_are_counted(tmp_path: Path) -> None:
    for number in range(scans.MAX_TOLD + 5):
        (tmp_path / f"{number}").symlink_to("gone")
    told = scan(tmp_path, ENGINES).passed_over
    assert len(told) == scans.MAX_TOLD + 1
    assert told[-1] == "5 more places were passed over"


@pytest.mark.parametrize(
    ("engine", "said"), [(Raising, "RuntimeError: no idea"), (Elsewhere, "TypeError: it says FoundModel")]
)
def test_an_engine_that_fails_costs_only_its_own_models(tmp_path: Path, engine: type[FakeEngine], said: str) -> None:
    put(tmp_path / "m.bin")
    found = scan(tmp_path, {"whole": Whole, "other": engine})
    assert [one.engine for one in found.models] == ["whole"]
    assert found.passed_over[0].startswith(f"looking for models of other failed: {said}")

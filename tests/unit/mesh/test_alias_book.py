"""A node's aliases: what a write may say, what is on disk when it is answered, and who has it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from viiwork_core.errors import AliasRefused, ConfigError, InvalidRequest, NotFound, ViiworkError
from viiwork_core.mesh import alias_book
from viiwork_core.mesh.alias_book import AliasBook, alias_store
from viiwork_core.mesh.alias_table import ALIASES, TOMBSTONE_HOURS, AliasTable, AliasWrite
from viiwork_core.mesh.table import MAX_VERSION, Change
from viiwork_core.mesh.table_store import TableStore
from viiwork_core.testing.fake_clock import FakeClock

MODELS = {"big", "small", "cold"}


class Scene:
    """A book in a folder, with the models of a mesh around it."""

    def __init__(self, folder: Path, *, store: TableStore | None = None, node: str = "here") -> None:
        self.known, self.served = set(MODELS), MODELS - {"cold"}
        self.told: list[Change] = []
        self.clock = FakeClock()
        self.store = store or alias_store(folder)
        self.book = AliasBook(
            self.store,
            node=node,
            clock=self.clock,
            known=lambda name: name in self.known,
            served=lambda name: name in self.served,
            tell=self.told.append,
        )

    @property
    def meant(self) -> dict[str, str]:
        return {name: write.target for name, write in self.book.table.live.items()}


class Slow(TableStore):
    """A disk that a test holds up, or that is full."""

    def __init__(self, state_dir: Path) -> None:
        super().__init__(state_dir / alias_book.FILE, ALIASES)
        self.go, self.begun = threading.Event(), threading.Event()
        self.full = False

    def save(self, table: AliasTable) -> None:
        self.begun.set()
        self.go.wait(20)
        if self.full:
            raise ViiworkError("no room")
        super().save(table)


def test_a_write_is_on_disk_when_it_is_known(tmp_path: Path) -> None:
    scene = Scene(tmp_path)

    async def run() -> None:
        await scene.book.open()
        assert await scene.book.set("a", "big", ["small"])
        assert alias_store(tmp_path).load() == scene.book.table
        assert not await scene.book.set("a", "big", ["small"])
        assert await scene.book.set("a", "small")
        await scene.book.remove("a")
        await scene.book.revert("a")

    asyncio.run(run())
    head, *before = scene.book.entry("a")
    assert head == AliasWrite(4, "here", int(scene.clock.wall() * 1000), "small")
    assert [(one.ver, one.target) for one in before] == [(3, ""), (2, "small"), (1, "big")]
    assert [change.changed for change in scene.told] == [True] * 4
    again = Scene(tmp_path)
    asyncio.run(again.book.open())
    assert again.book.table == scene.book.table
    assert [path.name for path in tmp_path.iterdir()] == ["aliases.json"]


def test_a_revert_twice_is_none(tmp_path: Path) -> None:
    scene = Scene(tmp_path)

    async def run() -> None:
        await scene.book.set("a", "big")
        with pytest.raises(AliasRefused, match="no earlier state"):
            await scene.book.revert("a")
        await scene.book.set("a", "small")
        for expected in ("big", "small", "big"):
            await scene.book.revert("a")
            assert scene.meant == {"a": expected}

    asyncio.run(run())


@pytest.mark.parametrize(
    ("write", "error", "told"),
    [
        (lambda book: book.set("big", "small"), AliasRefused, "name of a model"),
        (lambda book: book.set("x", "a"), AliasRefused, "is an alias"),
        (lambda book: book.set("x", "a", force=True), AliasRefused, "is an alias"),
        (lambda book: book.set("x", "big", ["a"]), AliasRefused, "is an alias"),
        (lambda book: book.set("a", "a", force=True), AliasRefused, "for itself"),
        (lambda book: book.set("x", "big", ["big"]), AliasRefused, "there twice"),
        (lambda book: book.set("x", "cold"), AliasRefused, "no node serves cold"),
        (lambda book: book.set("x/y", "big"), InvalidRequest, "no name"),
        (lambda book: book.set("x", "ö" * 2000, force=True), InvalidRequest, "bytes"),
        (lambda book: book.remove("x"), NotFound, "no alias x"),
        (lambda book: book.revert("x"), NotFound, "no alias x"),
    ],
)
def test_what_is_refused_changes_nothing(
    tmp_path: Path, write: Callable[[AliasBook], object], error: type[ViiworkError], told: str
) -> None:
    scene = Scene(tmp_path)

    async def run() -> None:
        await scene.book.set("a", "big")
        before = scene.book.table
        with pytest.raises(error, match=told):
            await write(scene.book)  # type: ignore[misc]  # each of these returns an awaitable
        assert scene.book.table is before

    asyncio.run(run())


def test_a_revert_to_what_has_become_a_model_or_an_alias_is_refused(tmp_path: Path) -> None:
    scene = Scene(tmp_path)

    async def run() -> None:
        await scene.book.set("a", "future", force=True)
        await scene.book.set("a", "big")
        await scene.book.set("future", "small")
        with pytest.raises(AliasRefused, match="future is an alias"):
            await scene.book.revert("a")
        scene.known.add("a")
        with pytest.raises(AliasRefused, match="name of a model"):
            await scene.book.revert("a")
        await scene.book.remove("a")

    asyncio.run(run())


def test_there_is_a_limit_of_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alias_book, "MAX_LIVE", 3)
    monkeypatch.setattr(alias_book, "MAX_NAMES", 4)
    scene = Scene(tmp_path)

    async def run() -> None:
        for name in "abc":
            await scene.book.set(name, "big")
        with pytest.raises(AliasRefused, match="3 aliases"):
            await scene.book.set("d", "big")
        await scene.book.set("a", "small")
        await scene.book.remove("a")
        await scene.book.set("d", "big")
        await scene.book.remove("d")
        with pytest.raises(AliasRefused, match="4 names"):
            await scene.book.set("e", "big")
        await scene.book.set("d", "small")

    asyncio.run(run())


def test_versions_can_be_used_up(tmp_path: Path) -> None:
    scene = Scene(tmp_path)

    async def run() -> None:
        await scene.book.merge(AliasTable({"a": (AliasWrite(MAX_VERSION, "there", target="big"),)}))
        with pytest.raises(AliasRefused, match="used up"):
            await scene.book.remove("a")

    asyncio.run(run())


def test_what_could_not_be_written_is_not_known(tmp_path: Path) -> None:
    store = Slow(tmp_path)
    store.full = True
    store.go.set()
    scene = Scene(tmp_path, store=store)

    async def run() -> None:
        with pytest.raises(ViiworkError, match="no room"):
            await scene.book.set("a", "big")
        with pytest.raises(ViiworkError, match="no room"):
            await scene.book.merge(AliasTable({"a": (AliasWrite(1, "there", target="big"),)}), "0" * 32)
        assert (scene.meant, scene.told, scene.book.contains("0" * 32)) == ({}, [], False)
        store.full = False
        assert await scene.book.set("a", "big")

    asyncio.run(run())


def test_a_write_whose_caller_leaves_is_known_and_no_other_meets_it(tmp_path: Path) -> None:
    store = Slow(tmp_path)
    scene = Scene(tmp_path, store=store)

    async def run() -> None:
        leaving = asyncio.create_task(scene.book.set("a", "big"))
        await asyncio.to_thread(store.begun.wait, 20)
        staying = asyncio.create_task(scene.book.set("b", "small"))
        leaving.cancel()
        store.go.set()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        assert await staying

    asyncio.run(run())
    assert scene.meant == {"a": "big", "b": "small"}
    assert alias_store(tmp_path).load() == scene.book.table


def test_who_has_a_name_is_told_by_digests(tmp_path: Path) -> None:
    here, there = Scene(tmp_path / "h", node="here"), Scene(tmp_path / "t", node="there")
    for scene in (here, there):
        scene.store.path.parent.mkdir()

    async def run() -> None:
        await here.book.open()
        await there.book.open()
        empty = here.book.table.digest
        assert here.book.contains(empty)
        await here.book.set("a", "big")
        first = here.book.table.digest
        assert not here.book.reached("a", empty)
        assert not here.book.reached("a", None)
        assert not here.book.reached("a", "0" * 32)
        assert not there.book.contains(first)
        await there.book.merge(here.book.table, first)
        assert there.book.table.digest == first
        assert here.book.reached("a", first)
        await here.book.set("b", "big")
        assert here.book.reached("a", first), "it is another name that has changed"
        assert not here.book.reached("b", first)
        await here.book.set("a", "small")
        assert not here.book.reached("a", first)
        # A table that has more than this one, and what is left of it when its own news is known here.
        await there.book.set("c", "big")
        assert not here.book.contains(there.book.table.digest)
        await here.book.merge(there.book.table, there.book.table.digest)
        assert here.book.contains(there.book.table.digest)
        assert not here.book.reached("c", there.book.table.digest), "it may have been cut short"

    asyncio.run(run())


def test_what_was_deleted_long_ago_is_forgotten_and_not_fetched_again(tmp_path: Path) -> None:
    scene = Scene(tmp_path)

    async def run() -> None:
        await scene.book.open()
        await scene.book.set("a", "big")
        await scene.book.set("b", "big")
        await scene.book.remove("a")
        known = scene.book.table.digest
        for _ in range(TOMBSTONE_HOURS):
            await scene.book.grow_older()
        assert set(scene.book.table.entries) == {"b"}
        assert alias_store(tmp_path).load() == scene.book.table
        assert scene.book.contains(known), "a member that has not forgotten it yet"
        assert scene.told[-1] == Change("a", None, changed=True)

    asyncio.run(run())


def test_an_hour_without_deleted_names_is_not_written(tmp_path: Path) -> None:
    scene = Scene(tmp_path)

    async def run() -> None:
        await scene.book.set("a", "big")
        scene.store.path.unlink()
        await scene.book.grow_older()
        assert not scene.store.path.exists()

    asyncio.run(run())


def test_a_crash_in_the_middle_leaves_the_old_file(tmp_path: Path) -> None:
    store = alias_store(tmp_path)
    old = AliasTable({"a": (AliasWrite(1, "here", target="big"),)})
    store.save(old)
    (tmp_path / "aliases.new").write_bytes(b'{"v":1,"aliases":{"a":')
    assert store.load() == old
    store.save(old.written("a", AliasWrite(2, "here", target="small")))
    assert [path.name for path in tmp_path.iterdir()] == ["aliases.json"]


@pytest.mark.parametrize("raw", [b"", b"\x00" * 64, b"[]", b'{"v":7,"aliases":{}}', b"[" * 100_000])
def test_a_damaged_file_is_refused_with_the_remedy(tmp_path: Path, raw: bytes) -> None:
    store = alias_store(tmp_path)
    store.path.write_bytes(raw)
    with pytest.raises(ConfigError, match=r"aliases\.json: the aliases cannot be read") as caught:
        store.load()
    assert "move the file away" in caught.value.remedy


def test_a_folder_that_cannot_be_written_is_an_error_in_words(tmp_path: Path) -> None:
    store = alias_store(tmp_path / "gone")
    with pytest.raises(ViiworkError, match="cannot be written to") as caught:
        store.save(AliasTable())
    assert caught.value.remedy

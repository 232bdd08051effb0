"""The table of API keys, and this node's book of it: made, revoked for ever, merged, on disk before anybody sees it."""

from __future__ import annotations

import asyncio
import stat
from collections.abc import Callable, Coroutine
from itertools import permutations
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given

from viiwork_core.errors import ConfigError, KeyConflict, NotFound
from viiwork_core.mesh import key_book
from viiwork_core.mesh.key_book import KeyBook
from viiwork_core.mesh.key_table import KEYS, KeyTable, KeyWrite
from viiwork_core.security.keys import ApiKey, digest_of, hash_text
from viiwork_core.testing.fake_clock import FakeClock

HASH = hash_text(digest_of("x"))


def key(name: str, **limits: Any) -> ApiKey:
    return ApiKey(name, digest_of(name), **limits)


class Scene:
    def __init__(self, folder: Path, node: str = "here") -> None:
        self.changes = 0
        self.book = KeyBook(folder, node=node, clock=FakeClock(), changed=self._changed)

    def _changed(self) -> None:
        self.changes += 1

    def play(self, scene: Callable[[], Coroutine[Any, Any, None]]) -> None:
        async def run() -> None:
            await self.book.open()
            await scene()

        asyncio.run(run())

    @property
    def names(self) -> list[str]:
        return [one.name for one in self.book.keys]


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_a_key_counts_until_it_is_revoked_and_outlives_a_restart(scene: Scene, tmp_path: Path) -> None:
    async def play() -> None:
        assert await scene.book.create(key("a", weight=2, daily_tokens=5, models=("m",)))
        assert not await scene.book.create(key("a", weight=2, daily_tokens=5, models=("m",))), "it is there already"
        assert await scene.book.create(key("b"))
        again = Scene(tmp_path)
        await again.book.open()
        assert again.book.keys == scene.book.keys == [key("a", weight=2, daily_tokens=5, models=("m",)), key("b")]
        await scene.book.revoke("a")
        assert (scene.names, scene.changes) == (["b"], 3)
        assert await scene.book.create(ApiKey("a", digest_of("another"))), "its name may be used again"

    scene.play(play)
    assert stat.S_IMODE((tmp_path / "keys.json").stat().st_mode) == 0o600


def test_what_stands_in_the_way_is_told(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_book, "MAX_LIVE", 2)
    monkeypatch.setattr(key_book, "MAX_NAMES", 3)

    async def play() -> None:
        await scene.book.create(key("a"))
        with pytest.raises(KeyConflict, match="there is a key a already"):
            await scene.book.create(key("a", weight=2))
        with pytest.raises(KeyConflict, match="this token is a key already"):
            await scene.book.create(ApiKey("b", digest_of("a")))
        await scene.book.create(key("b"))
        with pytest.raises(KeyConflict, match="there are 2 keys already"):
            await scene.book.create(key("c"))
        await scene.book.revoke("b")
        await scene.book.create(key("c"))
        await scene.book.revoke("c")
        with pytest.raises(KeyConflict, match="names were used already"):
            await scene.book.create(key("d"))
        for name in ("c", "nobody"):
            with pytest.raises(NotFound, match=f"there is no key '{name}'"):
                await scene.book.revoke(name)

    scene.play(play)


def test_the_last_key_opens_the_api_only_if_that_is_meant(scene: Scene) -> None:
    async def play() -> None:
        assert not scene.book.closed
        await scene.book.create(key("a"))
        with pytest.raises(KeyConflict, match="a is the last key"):
            await scene.book.revoke("a")
        await scene.book.revoke("a", opens=True)
        assert (scene.names, scene.book.closed) == ([], False)

    scene.play(play)


def test_two_that_revoke_the_last_two_keys_at_one_time_do_not_open_the_api(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "y").mkdir()
    one, two = Scene(tmp_path / "x", "x"), Scene(tmp_path / "y", "y")

    async def play() -> None:
        await two.book.open()
        await one.book.create(key("a"))
        await one.book.create(key("b"))
        await two.book.merge(one.book.table)
        await one.book.revoke("a", opens=True)
        await two.book.revoke("b", opens=True)
        await one.book.merge(two.book.table)
        await two.book.merge(one.book.table)
        assert one.book.table == two.book.table
        for book in (one.book, two.book):
            assert (book.keys, book.closed) == ([], True)

    one.play(play)


def test_a_revoked_key_does_not_come_back_with_a_node_that_was_away(scene: Scene) -> None:
    async def play() -> None:
        await scene.book.create(key("a"))
        await scene.book.create(key("b"))
        stale = scene.book.table
        await scene.book.revoke("a")
        for _ in range(24 * 1000):
            aged = scene.book.table.older()
        await scene.book.merge(aged)
        await scene.book.grow_older()
        await scene.book.merge(stale)
        assert scene.names == ["b"]

    scene.play(play)


def test_a_damaged_file_stops_the_node(scene: Scene, tmp_path: Path) -> None:
    (tmp_path / "keys.json").write_bytes(b'{"v": 1, "keys": {"a": {"ver": 1, "by": "x", "hash": "sha256:12"}}}')
    with pytest.raises(ConfigError, match="the keys cannot be read: 'a'") as error:
        asyncio.run(scene.book.open())
    assert "put back a good copy" in error.value.remedy


# The table

WRITES = st.builds(
    KeyWrite,
    ver=st.integers(1, 3),
    by=st.sampled_from(["x", "y"]),
    ts=st.integers(0, 1),
    hash=st.sampled_from([HASH, hash_text(digest_of("y")), None]),
)
TABLES = st.dictionaries(st.sampled_from(["a", "b", "c"]), WRITES).map(
    lambda found: KeyTable({name: (write,) for name, write in found.items()})
)


@given(tables=st.lists(TABLES, min_size=3, max_size=3))
def test_tables_are_the_same_whatever_came_first(tables: list[KeyTable]) -> None:
    merged = [one.merged(two).merged(three) for one, two, three in permutations(tables)]
    assert all(one == merged[0] for one in merged)
    assert merged[0].merged(tables[0]) == merged[0]
    assert KEYS.decode(KEYS.encode(merged[0])) == merged[0]


def test_of_two_writes_under_one_version_the_revocation_counts() -> None:
    made, revoked = KeyWrite(2, "x", hash=HASH), KeyWrite(2, "x")
    for one, two in ((made, revoked), (revoked, made)):
        table = KeyTable({"a": (one,)}).merged(KeyTable({"a": (two,)}))
        assert (table.entries["a"], table.live) == ((revoked,), {})


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("a", {"ver": 0, "by": "x", "hash": HASH}),
        ("a", {"ver": 1, "by": "x", "hash": "sha256:" + "g" * 64}),
        ("a", {"ver": 1, "by": "x", "hash": HASH, "weight": 0}),
        ("a", {"ver": 1, "by": "x", "hash": HASH, "weight": 10**9}),
        ("a", {"ver": 1, "by": "x", "hash": HASH, "daily_tokens": -1}),
        ("a", {"ver": 1, "by": "x", "hash": HASH, "models": ["m"] * 65}),
        ("a", {"ver": 1, "by": "x", "hash": HASH, "models": [" "]}),
        ("a", {"ver": 1, "by": "x", "hash": HASH, "opens": True}),
        ("a", {"ver": 1, "by": "x", "weight": 2}),
        ("a", {"ver": 1, "by": "<x>", "hash": HASH}),
        ("a", {"ver": 1, "by": "x", "hash": HASH, "history": [{"ver": 1, "by": "x"}]}),
        ("-a", {"ver": 1, "by": "x", "hash": HASH}),
        ("<b>", {"ver": 1, "by": "x", "hash": HASH}),
        ("a" * 65, {"ver": 1, "by": "x", "hash": HASH}),
    ],
)
def test_a_member_that_tells_nonsense_harms_no_other_key(name: str, write: dict[str, object]) -> None:
    good = {"ver": 1, "by": "x", "hash": HASH}
    page = {"v": 1, "digest": "0" * 32, "keys": {name: write, "good": good}}
    _, table, refused = KEYS.read_page(msgspec.json.encode(page))
    assert (set(table.entries), len(refused)) == ({"good"}, 1)

"""The store keeps the newest turn of each session within its bound, and hands out nothing that is not whole."""

from __future__ import annotations

import errno
import os
import stat
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from blake3 import blake3
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from viiwork_core.errors import CacheRefused, StoreFull
from viiwork_core.kvshare import arrivals
from viiwork_core.kvshare.replicas import ReplicaStore

if TYPE_CHECKING:
    from conftest import Bench, ManualClock


def session(number: int) -> str:
    return f"{number:032x}"


def reopened(store: ReplicaStore, clock: ManualClock, max_bytes: int = 10_000) -> ReplicaStore:
    return ReplicaStore(store._folder, max_bytes, clock).open()


def on_disk(store: ReplicaStore) -> int:
    return sum(path.stat().st_size for path in store._folder.glob("*") if path.suffix in (".kv", ".tmp"))


def test_a_replica_is_found_by_model_and_session(bench: Bench, store: ReplicaStore, clock: ManualClock) -> None:
    kept = bench.keep(store, b"a" * 100)
    assert store.find("tiny", bench.session) == kept
    assert (kept.header, kept.since) == (bench.stored(b"a" * 100), clock.now)
    assert kept.path.read_bytes() == b"a" * 100
    assert store.find("other", bench.session) is None
    assert store.find("tiny", session(1)) is None


def test_files_are_private_and_their_names_are_hex(bench: Bench, store: ReplicaStore) -> None:
    kept = bench.keep(store, b"a", model="../weird/Model name")
    assert stat.S_IMODE(kept.path.parent.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in kept.path.parent.iterdir()} == {0o600}
    assert set(kept.path.stem) <= set("0123456789abcdef-")
    assert kept.path.parent == store._folder


def test_the_newest_turn_wins(bench: Bench, store: ReplicaStore) -> None:
    bench.keep(store, b"two", turn=2)
    for turn in (1, 2):
        with pytest.raises(CacheRefused, match="not newer"):
            store.begin(bench.header(b"late", turn=turn))
    newest = bench.keep(store, b"three", turn=3)
    assert store.find("tiny", bench.session) == newest
    assert len(list(store._folder.iterdir())) == 2
    assert store.used == 5


def test_of_two_that_arrive_together_the_newer_stays(bench: Bench, store: ReplicaStore) -> None:
    older, newer = store.begin(bench.header(b"1", turn=1)), store.begin(bench.header(b"2", turn=2))
    older.write([b"1"])
    newer.write([b"2"])
    kept = newer.commit(bench.blake3(b"2"))
    with pytest.raises(CacheRefused, match="not newer"):
        older.commit(bench.blake3(b"1"))
    older.discard()
    assert store.find("tiny", bench.session) == kept
    assert store.used == on_disk(store) == 1


def test_a_restart_finds_what_was_whole_and_sweeps_the_rest(
    bench: Bench, store: ReplicaStore, clock: ManualClock
) -> None:
    kept = bench.keep(store, b"a" * 10)
    short = bench.keep(store, b"b" * 10, session=session(1))
    headless = bench.keep(store, b"c" * 10, session=session(2))
    lying = bench.keep(store, b"d" * 10, session=session(3))
    bodyless = bench.keep(store, b"e" * 10, session=session(4))
    unfinished = store.begin(bench.header(b"f" * 10, session=session(5)))
    unfinished.write([b"f" * 5])
    os.truncate(short.path, 9)
    headless.path.with_suffix(".json").unlink()
    lying.path.with_suffix(".json").write_bytes(b'{"turn":1}')
    bodyless.path.unlink()
    (store._folder / "notes.txt").write_text("not ours")

    again = reopened(store, clock)
    assert again.find("tiny", bench.session) == kept
    assert [again.find("tiny", session(number)) for number in range(1, 6)] == [None] * 5
    ours = {kept.path.name, kept.path.with_suffix(".json").name}
    assert {path.name for path in store._folder.iterdir()} == ours | {"notes.txt"}
    assert again.used == 10
    unfinished.discard()


def test_a_restart_between_install_and_cleaning_keeps_the_newer_turn(
    bench: Bench, store: ReplicaStore, clock: ManualClock
) -> None:
    old = bench.keep(store, b"old", turn=1)
    saved = {path: path.read_bytes() for path in (old.path, old.path.with_suffix(".json"))}
    new = bench.keep(store, b"newer", turn=2)
    for path, data in saved.items():
        path.write_bytes(data)
    again = reopened(store, clock)
    assert again.find("tiny", bench.session) == new
    assert not old.path.exists()
    assert again.used == 5


def test_a_smaller_bound_after_a_restart_drops_the_least_recently_used(
    bench: Bench, store: ReplicaStore, clock: ManualClock, tmp_path: Path
) -> None:
    for number in range(3):
        kept = bench.keep(store, bytes(10), session=session(number))
        os.utime(kept.path.with_suffix(".json"), (number, number))
    first = store.find("tiny", session(0))
    assert first is not None
    store.verified_copy(first, tmp_path / "copy")
    again = reopened(store, clock, max_bytes=20)
    assert [again.find("tiny", session(number)) is not None for number in range(3)] == [True, False, True]
    assert on_disk(again) == again.used == 20


def test_the_least_recently_used_goes_first(bench: Bench, tmp_path: Path, clock: ManualClock) -> None:
    store = ReplicaStore(tmp_path / "replicas", 300, clock).open()
    first = bench.keep(store, bytes(100), session=session(0))
    for number in (1, 2):
        bench.keep(store, bytes(100), session=session(number))
    with store.lease(first):
        pass
    bench.keep(store, bytes(100), session=session(3))
    assert [store.find("tiny", session(number)) is not None for number in range(4)] == [True, False, True, True]
    assert store.used == on_disk(store) == 300


def test_a_leased_replica_outlives_the_bound_and_its_successor(
    bench: Bench, tmp_path: Path, clock: ManualClock
) -> None:
    store = ReplicaStore(tmp_path / "replicas", 200, clock).open()
    first = bench.keep(store, b"1" * 100)
    with store.lease(first), store.lease(first):
        bench.keep(store, b"2" * 100, session=session(2))
        newer = bench.keep(store, b"3" * 90, turn=2)
        assert store.find("tiny", bench.session) == newer
        assert first.path.read_bytes() == b"1" * 100
        with pytest.raises(StoreFull, match="in use"):
            store.begin(bench.header(b"4" * 101, session=session(4)))
        store.forget(bench.session)
        assert first.path.exists()
    assert not first.path.exists()
    assert store.used == on_disk(store) == 0


def test_a_lease_on_what_is_gone_is_refused(bench: Bench, store: ReplicaStore) -> None:
    first = bench.keep(store, b"1")
    bench.keep(store, b"2", turn=2)
    with pytest.raises(CacheRefused, match="no longer kept"), store.lease(first):
        pass


def test_a_file_over_the_bound_is_refused_and_nothing_is_dropped_for_it(bench: Bench, store: ReplicaStore) -> None:
    bench.keep(store, b"a")
    with pytest.raises(StoreFull) as refusal:
        store.begin(bench.header(bytes(10_001), session=session(1)))
    assert "max_gib" in refusal.value.remedy
    assert store.find("tiny", bench.session) is not None


def test_what_is_arriving_counts(bench: Bench, store: ReplicaStore) -> None:
    arriving = store.begin(bench.header(bytes(6_000)))
    with pytest.raises(StoreFull, match="6000 are arriving"):
        store.begin(bench.header(bytes(6_000), session=session(1)))
    arriving.discard()
    arriving.discard()
    assert store.used == 0
    bench.keep(store, bytes(6_000), session=session(1))


@pytest.mark.parametrize(("code", "words"), [(errno.ENOSPC, "the disk is full"), (errno.EROFS, "Read-only")])
def test_a_disk_that_refuses_is_store_full_and_leaves_nothing(
    bench: Bench, store: ReplicaStore, monkeypatch: pytest.MonkeyPatch, code: int, words: str
) -> None:
    def refuse(*_: Any) -> int:
        raise OSError(code, os.strerror(code))

    arrival = store.begin(bench.header(b"ab"))
    arrival.write([b"a"])
    with monkeypatch.context() as patch:
        patch.setattr(arrivals.os, "write", refuse)
        with pytest.raises(StoreFull, match=words):
            arrival.write([b"b"])
    arrival.discard()
    assert list(store._folder.iterdir()) == []
    assert store.used == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_really_full_device_is_store_full() -> None:
    file = os.open("/dev/full", os.O_WRONLY)
    try:
        with pytest.raises(StoreFull, match="the disk is full"), arrivals.mapped():
            arrivals._write(file, b"x")
    finally:
        os.close(file)


def write_whole(arrival: arrivals.Arrival[Any], data: bytes, announced: bytes) -> None:
    arrival.write([data])
    arrival.commit(blake3(announced).hexdigest())


def test_wrong_length_and_wrong_content_are_refused(bench: Bench, store: ReplicaStore) -> None:
    for written, words in ((b"ab", "2 bytes, 3 were"), (b"abcd", "longer"), (b"abd", "content")):
        arrival = store.begin(bench.header(b"abc"))
        with pytest.raises(CacheRefused, match=words):
            write_whole(arrival, written, b"abc")
        arrival.discard()
        assert list(store._folder.iterdir()) == []
    assert store.used == 0


def test_forget_drops_every_model_and_what_is_arriving(bench: Bench, store: ReplicaStore) -> None:
    bench.keep(store, b"a")
    bench.keep(store, b"a", model="other")
    other = bench.keep(store, b"a", session=session(1))
    arriving = store.begin(bench.header(b"b", turn=2))
    arriving.write([b"b"])
    store.forget(bench.session)
    with pytest.raises(CacheRefused, match="forgotten"):
        arriving.commit(bench.blake3(b"b"))
    arriving.discard()
    assert store.find("tiny", bench.session) is None
    assert store.find("other", bench.session) is None
    assert store.find("tiny", session(1)) == other
    assert store.used == on_disk(store) == 1


def test_the_same_turn_may_come_again_after_forget_while_the_old_one_is_leased(
    bench: Bench, store: ReplicaStore
) -> None:
    old = bench.keep(store, b"old")
    with store.lease(old):
        store.forget(bench.session)
        new = bench.keep(store, b"new")
    assert not old.path.exists()
    assert new.path.read_bytes() == b"new"


@pytest.mark.parametrize("links", [True, False])
def test_a_verified_copy_is_the_file(
    bench: Bench, store: ReplicaStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    if not links:
        refuse_links(monkeypatch)
    kept, target = bench.keep(store, b"a" * 5_000), tmp_path / "engine.bin"
    target.write_bytes(b"left over from an earlier import")
    store.verified_copy(kept, target)
    assert target.read_bytes() == b"a" * 5_000
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert target.samefile(kept.path) is links
    target.unlink()
    assert store.find("tiny", bench.session) == kept


def test_a_copy_for_an_engine_that_refuses_links_has_no_other_name(
    bench: Bench, store: ReplicaStore, tmp_path: Path
) -> None:
    kept, target = bench.keep(store, b"a" * 5_000), tmp_path / "engine.bin"
    store.verified_copy(kept, target, link=False)
    assert target.read_bytes() == b"a" * 5_000
    assert target.stat().st_nlink == kept.path.stat().st_nlink == 1


def refuse_links(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    monkeypatch.setattr(Path, "hardlink_to", refuse)


@pytest.mark.parametrize("links", [True, False])
@pytest.mark.parametrize("damage", ["flip", "cut", "grow", "gone"])
def test_a_replica_that_rotted_is_dropped_and_refused(
    bench: Bench, store: ReplicaStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool, damage: str
) -> None:
    if not links:
        refuse_links(monkeypatch)
    kept, target = bench.keep(store, b"a" * 100), tmp_path / "engine.bin"
    if damage == "gone":
        kept.path.unlink()
    else:
        kept.path.write_bytes({"flip": b"a" * 99 + b"c", "cut": b"a" * 99, "grow": b"a" * 101}[damage])
    with pytest.raises(CacheRefused, match="damaged"):
        store.verified_copy(kept, target)
    assert not target.exists()
    assert store.find("tiny", bench.session) is None
    assert list(store._folder.iterdir()) == []
    assert store.used == 0


def test_a_target_that_cannot_be_written_keeps_the_replica(bench: Bench, store: ReplicaStore, tmp_path: Path) -> None:
    kept = bench.keep(store, b"a")
    with pytest.raises(StoreFull, match="No such file"):
        store.verified_copy(kept, tmp_path / "missing" / "engine.bin")
    assert store.find("tiny", bench.session) == kept


def test_a_folder_that_cannot_be_made_says_so(tmp_path: Path, clock: ManualClock) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreFull, match="cannot be written"):
        ReplicaStore(tmp_path / "file" / "replicas", 1, clock).open()


@pytest.mark.parametrize("bound", [10_000, 900])
def test_many_threads_leave_the_bound_and_the_books_right(
    bench: Bench, tmp_path: Path, clock: ManualClock, bound: int
) -> None:
    store = ReplicaStore(tmp_path / "replicas", bound, clock).open()
    surprises: list[BaseException] = []

    def work(number: int) -> None:
        for turn in range(1, 20):
            try:
                kept = bench.keep(store, bytes([number]) * 200, session=session(number % 3), turn=turn)
                store.verified_copy(kept, tmp_path / f"copy-{number}")
            except (CacheRefused, StoreFull):
                continue
            except BaseException as surprise:
                surprises.append(surprise)
                raise

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert surprises == []
    assert store.used == on_disk(store) <= bound
    if bound == 10_000:
        assert [store.find("tiny", session(n)).header.turn for n in range(3)] == [19] * 3  # type: ignore[union-attr]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40, deadline=None)
@given(moves=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5), st.integers(1, 60)), max_size=25))
def test_the_bound_holds_and_no_turn_goes_back(
    bench: Bench, tmp_path_factory: pytest.TempPathFactory, clock: ManualClock, moves: list[tuple[int, int, int]]
) -> None:
    store = ReplicaStore(tmp_path_factory.mktemp("replicas"), 100, clock).open()
    for number, turn, size in moves:
        before = store.find("tiny", session(number))
        if before is not None and before.header.turn >= turn:
            with pytest.raises(CacheRefused, match="not newer"):
                bench.keep(store, bytes(size), session=session(number), turn=turn)
            continue
        kept = bench.keep(store, bytes(size), session=session(number), turn=turn)
        assert store.find("tiny", session(number)) == kept
        assert store.used == on_disk(store) <= 100

"""A delta of any two files makes the one from the other, small where they are alike, and is refused when it lies."""

from __future__ import annotations

import os
import random
import tracemalloc
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from viiwork_core.contracts.cache import Segment, SegmentKind
from viiwork_core.errors import BaseMissing, CacheRefused
from viiwork_core.kvshare.delta import COPY, COPY_HEAD, LITERAL, LITERAL_HEAD, PATCH, PATCH_HEAD, PIECE, delta_blocks
from viiwork_core.kvshare.rebuild import Rebuild
from viiwork_core.kvshare.sealing import BLOCK

# Every example writes its own files anew.
shared = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


class Pair:
    """Two files, and what stands between them."""

    def __init__(self, folder: Path) -> None:
        self.new, self.base = folder / "new.kv", folder / "base.kv"

    def blocks(self, new: bytes, base: bytes, cuts: Sequence[int] = (), base_cuts: Sequence[int] = ()) -> list[bytes]:
        self.new.write_bytes(new)
        self.base.write_bytes(base)
        return list(delta_blocks(self.new, layout(new, cuts), self.base, layout(base, base_cuts)))

    def made(self, blocks: Sequence[bytes]) -> bytes:
        rebuild = Rebuild(self.base)
        try:
            return b"".join(rebuild.pieces(blocks))
        finally:
            rebuild.close()


def layout(data: bytes, cuts: Sequence[int]) -> tuple[Segment, ...]:
    """Segments that end at `cuts` and at the end; none for none."""
    ends = [*sorted(cut for cut in cuts if 0 < cut < len(data)), len(data)]
    starts = [0, *ends[:-1]]
    return tuple(Segment(a, b - a, SegmentKind.ROWS) for a, b in zip(starts, ends, strict=True)) if cuts else ()


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    return Pair(tmp_path)


def noise(size: int, seed: int) -> bytes:
    return random.Random(seed).randbytes(size)


def piles(rows: int, segments: int, width: int, seed: int = 0) -> tuple[bytes, list[int]]:
    """Segments of so many rows, each the beginning of a longer one, and where they end."""
    parts = [noise(10_000 * width, seed + number)[: rows * width] for number in range(segments)]
    return b"".join(parts), [(number + 1) * rows * width for number in range(segments)]


edits = st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 200), st.binary(max_size=200)), max_size=6)
cuts = st.lists(st.integers(1, 6000), max_size=5)


@shared
@given(size=st.integers(1, 5000), edits=edits, cuts=cuts, base_cuts=cuts)
def test_any_two_files(
    pair: Pair, size: int, edits: list[tuple[int, int, bytes]], cuts: list[int], base_cuts: list[int]
) -> None:
    base = new = noise(size, size)
    for at, gone, put in edits:
        new = new[:at] + put + new[at + gone :]
    new = new or b"!"
    assert pair.made(pair.blocks(new, base, cuts, base_cuts)) == new


@shared
@given(new=st.binary(min_size=1, max_size=300), base=st.binary(min_size=1, max_size=300))
def test_files_that_have_nothing_in_common(pair: Pair, new: bytes, base: bytes) -> None:
    assert pair.made(pair.blocks(new, base)) == new


def test_appended_rows_go_as_they_are(pair: Pair) -> None:
    (new, cuts), (base, base_cuts) = piles(3100, 60, 256), piles(3000, 60, 256)
    blocks = pair.blocks(new, base, cuts, base_cuts)
    assert pair.made(blocks) == new
    assert sum(map(len, blocks)) < 1.01 * (len(new) - len(base))
    assert all(len(block) <= BLOCK for block in blocks)


def columns(cells: int, channels: int) -> bytes:
    """A matrix stored channel by channel: a new token puts two bytes into each."""
    return b"".join(noise(8000, channel)[: 2 * cells] for channel in range(channels))


@pytest.mark.parametrize("head", [0, 500_000], ids=["bare", "behind a part that never grows"])
def test_what_grows_in_many_places_is_packed(pair: Pair, head: int) -> None:
    front = noise(head, 99)
    new, base = front + columns(3090, 3000), front + columns(3000, 3000)
    blocks = pair.blocks(new, base)
    assert pair.made(blocks) == new
    assert len(new) > 4 * PIECE
    assert sum(map(len, blocks)) < 1.3 * (len(new) - len(base))


def test_a_window_that_rolls_is_found_again(pair: Pair) -> None:
    whole = noise(3 << 20, 5)
    base, new = whole[: 2 << 20], whole[60_000 : (2 << 20) + 60_000]
    blocks = pair.blocks(new, base)
    assert pair.made(blocks) == new
    assert sum(map(len, blocks)) < 1.3 * 60_000


@pytest.mark.parametrize("kind", ["rows", "columns"])
def test_it_goes_on_where_any_block_begins(pair: Pair, kind: str) -> None:
    new, base = (
        (piles(3900, 20, 256)[0], piles(3000, 20, 256)[0])
        if kind == "rows"
        else (columns(3500, 2500), columns(3000, 2500))
    )
    blocks = pair.blocks(new, base)
    assert len(blocks) > 3
    for number in range(1, len(blocks)):
        start = len(pair.made(blocks[:number]))
        assert list(delta_blocks(pair.new, (), pair.base, (), start=start)) == blocks[number:]
        with pytest.raises(CacheRefused, match="no block of the delta begins"):
            list(delta_blocks(pair.new, (), pair.base, (), start=start - 1))


def test_segments_with_a_gap_are_refused(pair: Pair) -> None:
    pair.blocks(b"abc", b"abc")
    gap = (Segment(0, 1, SegmentKind.ROWS), Segment(2, 1, SegmentKind.ROWS))
    with pytest.raises(CacheRefused, match="do not follow"):
        list(delta_blocks(pair.new, gap, pair.base, ()))


def lies() -> Iterator[tuple[str, bytes]]:
    yield "kind 9", b"\x09"
    yield "ends inside", COPY_HEAD.pack(COPY, 1, 1)[:-1]
    yield "not there", COPY_HEAD.pack(COPY, 101, 0)
    yield "not there", COPY_HEAD.pack(COPY, 1, 1 << 60)
    yield "not there", COPY_HEAD.pack(COPY, 0, 0)
    yield "ends inside", LITERAL_HEAD.pack(LITERAL, 5) + b"four"
    yield "ends inside", LITERAL_HEAD.pack(LITERAL, 0)
    yield "not there", PATCH_HEAD.pack(PATCH, 10, 90, 11, 4) + b"zstd"
    yield "does not unpack", PATCH_HEAD.pack(PATCH, 10, 0, 100, 4) + b"zstd"
    yield "more than is allowed", PATCH_HEAD.pack(PATCH, PIECE + 1, 0, 100, 4) + b"zstd"


@pytest.mark.parametrize(("reason", "block"), [*lies()])
def test_what_no_delta_says_is_refused(pair: Pair, reason: str, block: bytes) -> None:
    pair.base.write_bytes(bytes(100))
    with pytest.raises(CacheRefused, match=reason):
        pair.made([block])


def test_a_packed_part_of_another_length_is_refused(pair: Pair) -> None:
    (block,) = pair.blocks(b"?" + noise(5000, 1), noise(5000, 1))
    assert block[0] == PATCH
    _, length, *rest = PATCH_HEAD.unpack_from(block)
    for wrong in (length - 1, length + 1):
        with pytest.raises(CacheRefused, match="length it states"):
            pair.made([PATCH_HEAD.pack(PATCH, wrong, *rest) + block[PATCH_HEAD.size :]])


@shared
@given(garbage=st.binary(min_size=1, max_size=200))
def test_garbage_makes_something_or_is_refused(pair: Pair, garbage: bytes) -> None:
    pair.base.write_bytes(bytes(100))
    try:
        pair.made([garbage])
    except CacheRefused as refusal:
        assert refusal.message  # noqa: PT017 - either end is right


def test_no_base_is_said(pair: Pair) -> None:
    with pytest.raises(BaseMissing):
        Rebuild(pair.base)


def test_64_mib_hold_a_few(pair: Pair) -> None:
    pair.base.write_bytes(os.urandom(32 * BLOCK) + columns(2000, 8000))
    pair.new.write_bytes(os.urandom(32 * BLOCK) + columns(2100, 8000))
    tracemalloc.start()
    try:
        rebuild, made = Rebuild(pair.base), 0
        for block in delta_blocks(pair.new, (), pair.base, ()):
            made += sum(map(len, rebuild.pieces([block])))
        rebuild.close()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert made == pair.new.stat().st_size > 64 * 1_000_000
    assert peak < 40 * BLOCK, f"{peak / BLOCK:.1f} MiB at the peak"

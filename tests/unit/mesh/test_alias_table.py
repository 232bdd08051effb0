"""The table of aliases: merging does not depend on order, repetition or way, and stays within its bounds."""

from __future__ import annotations

from itertools import permutations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from viiwork_core.mesh.alias_table import ALIASES, HISTORY, MAX_NAMES, TOMBSTONE_HOURS, AliasTable, AliasWrite
from viiwork_core.mesh.table import Change, changes

MODELS = ("m", "n", "o")


def write(ver: int, by: str = "a", target: str = "m", *fallbacks: str, ts: int = 0) -> AliasWrite:
    return AliasWrite(ver, by, ts, target, fallbacks, deleted=not target)


def table(**entries: AliasWrite) -> AliasTable:
    return AliasTable({name: (one,) for name, one in entries.items()})


@st.composite
def writes(draw: st.DrawFn) -> AliasWrite:
    ver, by = draw(st.integers(1, 4)), draw(st.sampled_from("ab"))
    if draw(st.booleans()):
        return AliasWrite(ver, by, draw(st.integers(0, 1)), deleted=True)
    target, *fallbacks = draw(st.lists(st.sampled_from(MODELS), min_size=1, max_size=3, unique=True))
    return AliasWrite(ver, by, draw(st.integers(0, 1)), target, tuple(fallbacks))


@st.composite
def tables(draw: st.DrawFn) -> AliasTable:
    found = draw(st.dictionaries(st.sampled_from("xyz"), st.lists(writes(), min_size=1, max_size=14)))
    entries = {name: AliasTable.entry(*some) for name, some in found.items()}
    deleted = [name for name, one in entries.items() if one[0].deleted]
    ages = draw(st.dictionaries(st.sampled_from(deleted), st.integers(1, 9))) if deleted else {}
    return AliasTable(entries, ages)


@settings(deadline=None)
@given(tables(), tables())
def test_merging_is_commutative(one: AliasTable, two: AliasTable) -> None:
    assert one.merged(two) == two.merged(one)
    assert one.merged(two).digest == two.merged(one).digest


@settings(deadline=None)
@given(tables(), tables(), tables())
def test_merging_is_associative(one: AliasTable, two: AliasTable, three: AliasTable) -> None:
    assert one.merged(two).merged(three) == one.merged(two.merged(three))


@settings(deadline=None)
@given(tables(), tables())
def test_merging_is_idempotent(one: AliasTable, two: AliasTable) -> None:
    assert one.merged(one) == one
    assert one.merged(two).merged(two) == one.merged(two).merged(one) == one.merged(two)


@settings(deadline=None)
@given(st.lists(tables(), max_size=4))
def test_a_table_stays_within_its_bounds(several: list[AliasTable]) -> None:
    merged = AliasTable()
    for one in several:
        merged = merged.merged(one)
    for found in merged.entries.values():
        assert 1 <= len(found) <= HISTORY + 1
        assert list(found) == sorted(set(found), key=lambda one: one.rank, reverse=True)
    assert set(merged.ages) <= {name for name, found in merged.entries.items() if found[0].deleted}


@settings(deadline=None)
@given(tables())
def test_a_table_is_read_as_it_was_written(one: AliasTable) -> None:
    assert ALIASES.decode(ALIASES.encode(one)) == one
    page, read, refused = ALIASES.read_page(ALIASES.encode_page(one))
    assert (page.digest, read, refused, page.next) == (one.digest, one, [], None)


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from("xyz"), st.sampled_from(MODELS), st.integers(0, 2)), max_size=20))
def test_nodes_that_write_apart_agree_once_they_meet(said: list[tuple[str, str, int]]) -> None:
    nodes = [AliasTable(), AliasTable(), AliasTable()]
    for name, target, at in said:
        head = nodes[at].entries.get(name)
        nodes[at] = nodes[at].written(name, write(head[0].ver + 1 if head else 1, f"node{at}", target))
    ends = {one.merged(two).merged(three).digest for one, two, three in permutations(nodes)}
    assert len(ends) == 1


def test_the_greater_version_wins_then_the_greater_author_whatever_the_time() -> None:
    early, late = write(2, "a", "m", ts=1), write(1, "z", "n", ts=10**13)
    assert table(x=early).merged(table(x=late)).live == {"x": early}
    one, two = write(1, "a", "m", ts=10**13), write(1, "b", "n", ts=1)
    merged = table(x=one).merged(table(x=two))
    assert merged.entries == {"x": (two, one)}
    assert list(changes(table(x=one), merged)) == [Change("x", two, changed=True, lost=one)]
    assert list(changes(table(x=two), merged)) == [Change("x", two, changed=False, lost=one)]
    assert list(changes(merged, merged.written("x", write(2)))) == [Change("x", write(2), changed=True)]


def test_a_deletion_beats_what_it_deleted_and_not_what_came_later() -> None:
    gone = table(x=write(1)).written("x", write(2, "a", ""))
    assert gone.merged(table(x=write(1))).live == {}
    assert gone.merged(table(x=write(3, "a", "n"))).live == {"x": write(3, "a", "n")}


def test_a_deletion_is_remembered_for_a_month_of_hours() -> None:
    gone = table(x=write(2, "a", ""), y=write(1))
    for _ in range(TOMBSTONE_HOURS - 1):
        gone = gone.older()
    assert gone.ages == {"x": TOMBSTONE_HOURS - 1}
    assert table(x=write(2, "a", "")).merged(gone).ages == gone.ages, "the longest that is known of"
    assert gone.merged(table(x=write(3))).ages == {}, "of another state"
    assert gone.older() == table(y=write(1))


def test_the_last_names_are_left_out_of_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(AliasTable().merged(table(**{f"n{i}": write(1) for i in range(MAX_NAMES + 5)})).entries) == MAX_NAMES
    monkeypatch.setattr(AliasTable, "MAX_NAMES", 3)
    parts = [table(**{name: write(1) for name in names}) for names in ("ae", "bd", "cf")]
    for one, two, three in permutations(parts):
        assert set(one.merged(two).merged(three).entries) == set("abc")


def test_a_table_is_told_in_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = table(**{f"n{i:03}": write(1) for i in range(100)})
    monkeypatch.setattr("viiwork_core.mesh.table_text.PAGE_BYTES", 300)
    merged, after, pages = AliasTable(), "", 0
    while True:
        page, read, _ = ALIASES.read_page(ALIASES.encode_page(whole, after))
        assert page.digest == whole.digest
        merged, pages = merged.merged(read), pages + 1
        if page.next is None:
            break
        after = page.next
    assert merged == whole
    assert pages > 5


@pytest.mark.parametrize(
    "bad",
    [
        {},
        {"ver": 1, "by": "a"},
        {"ver": 0, "by": "a", "target": "m"},
        {"ver": (1 << 53) + 1, "by": "a", "target": "m"},
        {"ver": 1, "by": "", "target": "m"},
        {"ver": 1, "by": "a\n", "target": "m"},
        {"ver": 1, "by": "a", "target": "m\n"},
        {"ver": 1, "by": "a", "target": "a b"},
        {"ver": 1, "by": "a", "target": "m", "deleted": True},
        {"ver": 1, "by": "a", "fallbacks": ["m"], "deleted": True},
        {"ver": 1, "by": "a", "target": "m", "fallbacks": ["m"]},
        {"ver": 1, "by": "a", "target": "m", "fallbacks": [f"m{i}" for i in range(9)]},
        {"ver": 1, "by": "a", "target": "ö" * 250, "fallbacks": [f"{i}" + "ö" * 250 for i in range(8)]},
        {"ver": 1, "by": "a", "target": "m", "ts": -1},
        {"ver": 1, "by": "a", "target": "m", "history": [{"ver": 1, "by": "a"}]},
        {"ver": 1, "by": "a", "target": "m", "history": [{"ver": 1, "by": "a", "target": "m"}] * 11},
        {"ver": 1, "by": "a", "deleted": True, "age_h": TOMBSTONE_HOURS + 1},
        [],
    ],
)
def test_what_cannot_be_is_refused_and_holds_up_nothing_else(bad: object) -> None:
    good = {"ver": 1, "by": "a", "target": "m", "more": "of a later release"}
    whole = {"v": 1, "digest": "0" * 32, "aliases": {"x": bad, "y": good}}
    _, read, refused = ALIASES.read_page(msgspec.json.encode(whole))
    assert (set(read.entries), len(refused)) == ({"y"}, 1)
    assert refused[0].startswith("'x': ")
    with pytest.raises(ValueError, match=r".+"):
        ALIASES.decode(msgspec.json.encode(whole))


@pytest.mark.parametrize("name", ["", "..", "a/b", "a" * 65, "a\n", "é"])
def test_a_name_that_cannot_be_is_refused(name: str) -> None:
    good = {"ver": 1, "by": "a", "target": "m"}
    whole = msgspec.json.encode({"v": 1, "digest": "0" * 32, "aliases": {name: good, "y": good}})
    assert set(ALIASES.read_page(whole)[1].entries) == {"y"}
    with pytest.raises(ValueError, match=r".+"):
        ALIASES.decode(whole)

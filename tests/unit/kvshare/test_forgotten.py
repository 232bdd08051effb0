"""Tombstones: what two nodes make of each other's, and what is left of them on the disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from viiwork_core.errors import BackendFailed, ConfigError, ViiworkError
from viiwork_core.kvshare.forgotten import HOURS, LIMIT, Forgotten, ForgottenFile, Tombstone

ONE, TWO = "1" * 32, "2" * 32


def test_the_later_turn_counts_in_either_order() -> None:
    left = Forgotten().with_one(ONE, 3).with_one(TWO, 1)
    right = Forgotten().with_one(ONE, 5)
    assert left.merged(right).digest == right.merged(left).digest
    assert left.merged(right).turn(ONE) == 5
    assert left.merged(right).news(left) == (ONE,)
    assert set(left.merged(right).news(right)) == {TWO}
    assert left.merged(right).news(left.merged(right)) == ()
    assert left.with_one(ONE, 1).turn(ONE) == 3, "a turn is never taken back"


def test_a_session_nobody_knew_is_news_too() -> None:
    assert Forgotten().with_one(ONE, 0).news(Forgotten()) == (ONE,)


def test_time_is_what_nodes_ran_and_an_expired_tombstone_does_not_come_back() -> None:
    young, old = Forgotten().with_one(ONE, 3), Forgotten({ONE: Tombstone(3, HOURS - 1)})
    assert young.merged(old).older().turn(ONE) is None
    assert old.older().turn(ONE) is None
    assert Forgotten().merged(Forgotten({ONE: Tombstone(3, HOURS)})).turn(ONE) is None
    assert young.older().digest == young.digest, "an age is no reason to fetch"


def test_the_table_is_bounded_and_the_oldest_go_first() -> None:
    many = {f"{number:032x}": Tombstone(1, number) for number in range(LIMIT + 5)}
    table = Forgotten(many)
    assert len(table) == LIMIT
    assert f"{LIMIT + 4:032x}" not in set(table)
    assert table.with_one(ONE, 1).turn(ONE) == 1


def test_the_file_is_what_was_saved(tmp_path: Path) -> None:
    file = ForgottenFile(tmp_path / "kv")
    assert len(file.load()) == 0
    file.save(Forgotten().with_one(ONE, 3))
    assert file.load().turn(ONE) == 3
    file.path.write_text("{")
    with pytest.raises(ConfigError, match="cannot be read"):
        file.load()
    blocked = ForgottenFile(tmp_path / "kv" / "forgotten.json")
    with pytest.raises(ViiworkError, match="written"):
        blocked.save(Forgotten())


@pytest.mark.parametrize(
    "text",
    [b"", b"[]", b'{"forgotten":{"UP":{"turn":1}}}', b'{"forgotten":{"%s":{"turn":-1}}}' % ONE.encode(), b"\xff"],
)
def test_a_member_s_nonsense_is_refused(text: bytes) -> None:
    with pytest.raises(BackendFailed, match="malformed"):
        Forgotten.decode(text)

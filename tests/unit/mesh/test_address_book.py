"""What is remembered of members over a restart, and what of the file is believed."""

from __future__ import annotations

import asyncio
import json
import stat
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from viiwork_core.mesh import address_book
from viiwork_core.mesh.address_book import SAVE_S, AddressBook
from viiwork_core.mesh.member import Member
from viiwork_core.testing.fake_clock import FakeClock

DAY_S = 86_400.0
TODAY = "2027-01-15"
"""Of a FakeClock."""


def member(node: str, address: str) -> Member:
    return Member(node, "1", address.rpartition(":")[0], 8086, gossip=address)


ATTIC, CELLAR = member("attic", "192.0.2.1:7946"), member("cellar", "[2001:db8::2]:7946")


class Shelf:
    """The file of a book, and a clock."""

    def __init__(self, folder: Path) -> None:
        self.file, self.clock = folder / "members.json", FakeClock()

    def book(self, mesh: str = "home") -> AddressBook:
        return AddressBook(self.file, self.clock, mesh=mesh)

    def read(self, mesh: str = "home") -> tuple[str, ...]:
        """What a node that starts now knows."""
        book = self.book(mesh)
        book.load()
        return book.addresses()

    def written(self) -> dict[str, dict[str, str]]:
        found: dict[str, dict[str, str]] = json.loads(self.file.read_text())["members"]
        return found


def saved(members: dict[str, dict[str, str]]) -> str:
    return json.dumps({"mesh": "home", "members": members})


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(tmp_path)


def test_a_later_run_knows_them(shelf: Shelf) -> None:
    book = shelf.book()
    book.note([ATTIC, CELLAR])
    asyncio.run(book.save())
    assert shelf.read() == (ATTIC.gossip, CELLAR.gossip)
    assert shelf.written()["attic"] == {"address": ATTIC.gossip, "seen": TODAY}
    assert shelf.read(mesh="another") == (), "they are strangers there"
    assert stat.S_IMODE(shelf.file.stat().st_mode) == 0o600


def test_who_left_is_known_for_a_month(shelf: Shelf) -> None:
    book = shelf.book()
    book.note([ATTIC])
    shelf.clock.advance(30 * DAY_S)
    book.note([CELLAR])
    assert book.addresses() == (CELLAR.gossip, ATTIC.gossip)
    asyncio.run(book.save())
    shelf.clock.advance(DAY_S)
    assert shelf.read() == (CELLAR.gossip,)
    book.note([])
    assert book.addresses() == (CELLAR.gossip,)


def test_who_moved_is_known_where_it_is(shelf: Shelf) -> None:
    book = shelf.book()
    book.note([ATTIC])
    book.note([member("attic", "192.0.2.9:7946")])
    assert book.addresses() == ("192.0.2.9:7946",)


def test_a_long_run_is_no_old_memory(shelf: Shelf) -> None:
    book = shelf.book()
    for _ in range(60):
        book.note([ATTIC])
        asyncio.run(book.save())
        shelf.clock.advance(DAY_S)
    assert shelf.read() == (ATTIC.gossip,)


def test_it_is_written_when_it_changes_and_not_all_the_time(shelf: Shelf) -> None:
    book = shelf.book()

    def saved(*members: Member) -> bool:
        shelf.file.unlink(missing_ok=True)
        book.note(members)
        asyncio.run(book.save())
        return shelf.file.exists()

    assert not saved()
    assert saved(ATTIC)
    assert not saved(ATTIC, CELLAR), "just after another"
    shelf.clock.advance(SAVE_S)
    assert saved(ATTIC, CELLAR)
    shelf.clock.advance(SAVE_S)
    assert not saved(ATTIC), "one that left is still known"


def test_those_seen_last_are_kept(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(address_book, "MAX_ENTRIES", 2)
    book = shelf.book()
    book.note([ATTIC])
    shelf.clock.advance(DAY_S)
    several = [member(f"n{number}", f"192.0.2.{number}:7946") for number in range(10, 20)]
    for _ in range(2):
        book.note(several)
        assert book.addresses() == ("192.0.2.10:7946", "192.0.2.11:7946")


@pytest.mark.parametrize("address", ["box.example:7946", "192.0.2.1", "192.0.2.1:0", "[fe80::1%eth0]:7946", ""])
def test_what_is_no_address_is_left_out(shelf: Shelf, address: str) -> None:
    entries = {"odd": address, "attic": ATTIC.gossip}
    shelf.file.write_text(saved({node: {"address": one, "seen": TODAY} for node, one in entries.items()}))
    assert shelf.read() == (ATTIC.gossip,)


def test_a_day_to_come_stands_before_no_other(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(address_book, "MAX_ENTRIES", 1)
    entries = {"attic": (ATTIC.gossip, TODAY), "odd": ("192.0.2.7:7946", "9999-12-31")}
    shelf.file.write_text(saved({node: {"address": at, "seen": seen} for node, (at, seen) in entries.items()}))
    assert shelf.read() == (ATTIC.gossip,)


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"[1]", id="a list"),
        pytest.param(b'{"attic": {"address": 7, "seen": "2027-01-15"}}', id="no text"),
        pytest.param(b'{"attic": {"address": "192.0.2.1:7946", "seen": "yesterday"}}', id="no day"),
        pytest.param(b"\xff\xfe", id="binary"),
        pytest.param(b"[" * 100_000, id="deep"),
    ],
)
def test_a_file_that_cannot_be_read_is_one_line_and_written_anew(shelf: Shelf, content: bytes) -> None:
    shelf.file.write_bytes(content)
    with capture_logs() as logs:
        assert shelf.read() == ()
    assert [line["event"] for line in logs] == ["the addresses of earlier members are not known"]
    book = shelf.book()
    book.note([ATTIC])
    asyncio.run(book.save())
    assert shelf.read() == (ATTIC.gossip,)


def test_a_disk_that_takes_nothing_is_one_line_for_each_change(shelf: Shelf) -> None:
    book = AddressBook(shelf.file / "no folder" / "members.json", shelf.clock, mesh="home")
    book.note([ATTIC])
    with capture_logs() as logs:
        for _ in range(3):
            asyncio.run(book.save())
            shelf.clock.advance(SAVE_S)
    assert [line["event"] for line in logs] == ["the members' addresses are not written down"]
    assert book.addresses() == (ATTIC.gossip,)

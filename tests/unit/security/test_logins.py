"""Logins end in time, with their key, and are bounded in number; wrong keys are counted by address."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from viiwork_core.security.keys import ApiKey, KeyRing, digest_of, new_token
from viiwork_core.security.logins import (
    ADDRESSES_MOST,
    FAILURES_MOST,
    FAILURES_S,
    LOGIN_S,
    LOGINS_MOST,
    Guesses,
    Logins,
)
from viiwork_core.security.operator_token import NAME, read_operator_token, write_operator_token
from viiwork_core.testing.fake_clock import FakeClock

KEY = ApiKey("alice", digest_of(new_token()))


def test_a_login_is_found_until_it_ends() -> None:
    clock, keys = FakeClock(), KeyRing([KEY])
    logins = Logins(keys, clock)
    value = logins.begin(KEY)
    assert logins.find(value) == KEY
    assert logins.find(value + "x") is None
    clock.advance(LOGIN_S - 1)
    assert logins.find(value) == KEY
    clock.advance(1)
    assert logins.find(value) is None
    assert len(logins) == 0


def test_logging_out_ends_one() -> None:
    logins = Logins(KeyRing([KEY]), FakeClock())
    one, other = logins.begin(KEY), logins.begin(KEY)
    assert one != other
    logins.end(one)
    logins.end("nobody's")
    assert (logins.find(one), logins.find(other)) == (None, KEY)


def test_a_revoked_key_ends_its_logins() -> None:
    keys = KeyRing([KEY])
    logins = Logins(keys, FakeClock())
    value = logins.begin(KEY)
    keys.replace([])
    assert logins.find(value) is None
    keys.replace([KEY])
    assert logins.find(value) is None


def test_what_is_changed_of_a_key_holds_at_once() -> None:
    keys = KeyRing([KEY])
    logins = Logins(keys, FakeClock())
    value = logins.begin(KEY)
    changed = ApiKey("alice", KEY.digest, weight=3)
    keys.replace([changed])
    assert logins.find(value) == changed


def test_there_are_so_many_and_no_more() -> None:
    logins = Logins(KeyRing([KEY]), FakeClock())
    values = [logins.begin(KEY) for _ in range(LOGINS_MOST + 1)]
    assert len(logins) == LOGINS_MOST
    assert (logins.find(values[0]), logins.find(values[-1])) == (None, KEY)
    assert values[-1] not in repr(logins)


def test_an_address_may_guess_so_often() -> None:
    clock = FakeClock()
    guesses = Guesses(clock)
    assert [guesses.failed("192.0.2.7") for _ in range(FAILURES_MOST)] == [True] + [False] * (FAILURES_MOST - 1)
    assert guesses.wait_s("192.0.2.7") == FAILURES_S
    assert guesses.wait_s("192.0.2.8") == 0
    clock.advance(FAILURES_S)
    assert guesses.wait_s("192.0.2.7") == 0
    assert guesses.failed("192.0.2.7")


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("2001:db8::1", "2001:db8::2", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:192.0.2.7", "192.0.2.7", True),
        ("", "", True),
        ("unix", "unix", True),
    ],
)
def test_a_machine_s_ipv6_addresses_are_one(one: str, other: str, same: bool) -> None:
    guesses = Guesses(FakeClock())
    for _ in range(FAILURES_MOST):
        guesses.failed(one)
    assert (guesses.wait_s(other) > 0) is same


def test_so_many_addresses_are_known() -> None:
    guesses = Guesses(FakeClock())
    for _ in range(FAILURES_MOST):
        guesses.failed("192.0.2.7")
    for number in range(ADDRESSES_MOST):
        guesses.failed(f"10.0.{number >> 8}.{number & 255}")
    assert guesses.wait_s("192.0.2.7") == 0


def test_the_operator_s_token_is_the_user_s_alone(tmp_path: Path) -> None:
    token = write_operator_token(tmp_path)
    assert stat.S_IMODE((tmp_path / NAME).stat().st_mode) == 0o600
    assert read_operator_token(tmp_path) == token
    assert write_operator_token(tmp_path) != token
    assert read_operator_token(tmp_path) != token
    assert [path.name for path in tmp_path.iterdir()] == [NAME]


def test_there_may_be_no_token(tmp_path: Path) -> None:
    assert read_operator_token(tmp_path) is None
    (tmp_path / NAME).write_text("\n")
    assert read_operator_token(tmp_path) is None

"""API keys: tokens, what is kept of them, and the ring."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from viiwork_core.security.keys import (
    TOKEN_LENGTH,
    ApiKey,
    KeyRing,
    digest_of,
    fault,
    hash_text,
    new_token,
    read_hash,
)

ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"


def test_tokens_differ_and_have_the_right_form() -> None:
    tokens = {new_token() for _ in range(100)}
    assert len(tokens) == 100
    assert {len(token) for token in tokens} == {TOKEN_LENGTH}
    assert {fault(token) for token in tokens} == {None}


@given(place=st.integers(4, TOKEN_LENGTH - 1), letter=st.sampled_from(ALPHABET))
def test_a_wrong_character_is_found(place: int, letter: str) -> None:
    token = new_token()
    wrong = token[:place] + letter + token[place + 1 :]
    assert fault(wrong) is None if wrong == token else "checksum" in str(fault(wrong))


@pytest.mark.parametrize(
    ("token", "says"),
    [
        ("", "does not begin with vwk_"),
        ("sk-123", "does not begin with vwk_"),
        ("vwk_", "was it cut off"),
        ("vwk_" + "A" * 47, "was it cut off"),
        ("vwk_" + "A" * 49, "was it cut off"),
        ("vwk_" + "é" * 48, "was it cut off"),
        ("vwk_" + "A" * 48 + "\n", "was it cut off"),
        ("vwk_" + "A" * 48, "checksum"),
    ],
)
def test_what_is_no_token_is_told_apart(token: str, says: str) -> None:
    assert says in str(fault(token))


def test_the_ring_finds_a_key_by_its_token_alone() -> None:
    one, two = new_token(), new_token()
    ring = KeyRing([ApiKey("one", digest_of(one)), ApiKey("two", digest_of(two), weight=3)])
    assert [ring.find(token) for token in (one, two)] == [
        ring.by_digest(digest_of(one)),
        ring.by_digest(digest_of(two)),
    ]
    assert ring.find(one) == ApiKey("one", digest_of(one))
    assert [ring.find(token) for token in (new_token(), one[:-1], one + " ", "", "\udc80", digest_of(one).hex())] == [
        None
    ] * 6


def test_a_hash_of_something_shorter_lets_nobody_in() -> None:
    """Whoever writes a configuration cannot make a password of his own a key by accident."""
    ring = KeyRing([ApiKey("weak", digest_of("hunter2"))])
    assert ring.find("hunter2") is None


def test_a_ring_without_keys_is_false_unless_it_is_closed() -> None:
    ring = KeyRing()
    assert not ring
    ring.replace([], closed=True)
    assert ring
    assert ring.find(new_token()) is None
    token = new_token()
    ring.replace([ApiKey("a", digest_of(token))])
    assert ring
    assert [key.name for key in ring] == ["a"]
    ring.replace([])
    assert (bool(ring), len(ring), ring.find(token)) == (False, 0, None)


def test_a_ring_shows_nothing_of_its_keys() -> None:
    token = new_token()
    ring = KeyRing([ApiKey("a", digest_of(token))])
    assert repr(ring) == "KeyRing(1 keys)"


def test_hashes_are_read_as_they_are_written() -> None:
    digest = digest_of(new_token())
    assert read_hash(hash_text(digest)) == digest


@pytest.mark.parametrize(
    "text", ["", "sha256:", "sha256:" + "0" * 63, "sha256:" + "G" * 64, "md5:" + "0" * 64, "0" * 64]
)
def test_what_is_no_hash_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="64 hex"):
        read_hash(text)


def test_a_key_is_for_all_models_or_for_those_that_it_names() -> None:
    digest = digest_of("x")
    assert ApiKey("a", digest).allows("anything")
    assert [ApiKey("a", digest, models=("m", "n")).allows(name) for name in ("m", "n", "M", "")] == [
        True,
        True,
        False,
        False,
    ]

"""While a mesh changes its secret, a replica opens with either key, and with no third one."""

from __future__ import annotations

from typing import Any

import pytest

from viiwork_core.errors import CacheRefused
from viiwork_core.kvshare.sealing import Opener

NEW, OLD, OTHER = b"n" * 32, b"o" * 32, b"x" * 32
BLOCKS = [b"one" * 100, b"two" * 100, b"three"]


def sealed(bench: Any, key: bytes) -> bytes:
    return b"".join(bench.sealed(bench.header(b"".join(BLOCKS)), BLOCKS, b"".join(BLOCKS), key))


@pytest.mark.parametrize("key", [NEW, OLD])
def test_either_key_opens(bench: Any, key: bytes) -> None:
    opener = Opener(NEW, OLD)
    assert [bytes(block) for block in opener.feed(sealed(bench, key))] == BLOCKS
    opener.finish()
    assert opener.header == bench.header(b"".join(BLOCKS))


def test_another_key_does_not(bench: Any) -> None:
    with pytest.raises(CacheRefused, match="another key"):
        list(Opener(NEW, OLD).feed(sealed(bench, OTHER)))


def test_the_key_of_the_first_frame_is_that_of_the_others(bench: Any) -> None:
    opener = Opener(NEW, OLD)
    list(opener.feed(sealed(bench, NEW)[:-1]))
    assert len(opener._ciphers) == 1

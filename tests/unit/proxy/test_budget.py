"""The bytes of all bodies together are bounded, and come back whatever happens."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from viiwork_core.errors import BodiesFull, BodyTooLarge
from viiwork_core.proxy.budget import BodyBudget
from viiwork_core.proxy.request import ClientGone, read_body


async def read(budget: BodyBudget, *chunks: bytes, length: int | None = None, gone: bool = False) -> tuple[bytes, int]:
    """A body that comes in these chunks, and what was counted of it."""
    messages: list[dict[str, Any]] = [{"type": "http.request", "body": chunk, "more_body": True} for chunk in chunks]
    messages.append({"type": "http.disconnect"} if gone else {"type": "http.request", "more_body": False})

    async def receive() -> Any:
        return messages.pop(0)

    headers = [] if length is None else [(b"content-length", str(length).encode())]
    with budget.share() as share:
        return await read_body({"headers": headers}, receive, 100, share), budget.used


def test_what_has_come_counts_until_the_request_is_over() -> None:
    budget = BodyBudget(100)
    assert asyncio.run(read(budget, b"a" * 30, b"b" * 30)) == (b"a" * 30 + b"b" * 30, 60)
    assert budget.used == 0


def test_what_is_announced_counts_only_when_it_has_come() -> None:
    """Clients that announce much and send nothing keep nobody out."""
    budget = BodyBudget(100)
    with budget.share() as idle:
        idle.announce(100)
        assert budget.used == 0
        assert asyncio.run(read(budget, b"a" * 60, length=60))[1] == 60


def test_a_body_that_is_announced_and_has_no_room_is_not_read() -> None:
    budget = BodyBudget(100)
    with budget.share() as other:
        other.take(60)
        with pytest.raises(BodiesFull) as refused:
            asyncio.run(read(budget, length=41))
        assert (refused.value.status, refused.value.retry_after) == (429, 2)
        assert asyncio.run(read(budget, b"a" * 40, length=40))[1] == 100
    assert budget.used == 0


@pytest.mark.parametrize(
    ("chunks", "gone", "error"),
    [((b"a" * 30, b"b" * 30), False, BodiesFull), ((b"a",), True, ClientGone), ((b"a" * 101,), False, BodyTooLarge)],
)
def test_a_body_that_is_not_read_to_its_end_gives_all_back(
    chunks: tuple[bytes, ...], gone: bool, error: type[Exception]
) -> None:
    budget = BodyBudget(50 if error is BodiesFull else 200)
    with pytest.raises(error):
        asyncio.run(read(budget, *chunks, gone=gone))
    assert budget.used == 0

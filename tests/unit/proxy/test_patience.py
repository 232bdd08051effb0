"""How long a place may be silent."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from viiwork_core.contracts.policy import Score
from viiwork_core.errors import BackendFailed
from viiwork_core.mesh.report import LONGEST_SILENCE, ModelReport, ScoreReport
from viiwork_core.proxy import patience
from viiwork_core.proxy.body import Body
from viiwork_core.proxy.exchange import Exchange
from viiwork_core.proxy.patience import SHORTEST, Patience, patience_for, patience_there
from viiwork_core.proxy.request import InferenceRequest, Whose, build

PATH = "/v1/chat/completions"


def asking(tokens: int) -> InferenceRequest:
    """A request with a prompt of about so many tokens."""
    scope = {"path": PATH, "raw_path": PATH.encode(), "query_string": b"", "headers": []}
    return build(scope, Body(b'{"model":"m"}'), Whose(), pin=None, rid="r", prompt_tokens=tokens)


@pytest.mark.parametrize(
    ("tokens", "configured", "seconds"),
    [
        (1, None, SHORTEST),
        (1500, None, SHORTEST),
        (30_000, None, 600.0),
        (200_000, None, 4000.0),
        (30_000, 2.0, 2.0),
        (1, 300.0, 300.0),
    ],
)
def test_a_long_prompt_has_the_time_that_old_cards_need(tokens: int, configured: float | None, seconds: float) -> None:
    assert patience_for(asking(tokens), configured) == pytest.approx(seconds, rel=0.01)


@pytest.mark.parametrize(
    ("tokens", "score", "side_by_side", "seconds"),
    [
        # Twice the time that the whole prompt takes, cached or not.
        (100_000, Score(1000.0, 500.0), 1, 102.0),
        (100_000, Score(1000.0, 2000.0), 1, 402.0),
        (100_000, Score(1000.0, 500.0), 4, 408.0),
        (100, Score(1000.0, 500.0), 1, SHORTEST),
        (1, Score(60_000.0, 1.0), 1, 120.0),
        (1_000_000, Score(1.0, 1e9), 1, LONGEST_SILENCE),
    ],
)
def test_what_is_measured_says_how_long_a_cold_prompt_takes(
    tokens: int, score: Score, side_by_side: int, seconds: float
) -> None:
    assert patience_for(asking(tokens), None, score, side_by_side) == pytest.approx(seconds, rel=0.01)
    assert patience_for(asking(tokens), 45.0, score, side_by_side) == 45.0


def test_another_node_s_patience_is_what_it_reports() -> None:
    about = ModelReport("m", "fake", 8, 0, 0, 2, 2, score=ScoreReport(1000.0, 500.0))
    assert patience_there(asking(100_000), about) == 408.0, "each of two backends reads four prompts at a time"
    assert patience_there(asking(30_000), None) == 600.0
    told = ModelReport("m", "fake", 8, 0, 0, 2, 2, first_byte_s=300.0, score=ScoreReport(1000.0, 500.0))
    assert patience_there(asking(100_000), told) == 300.0


# The scope


def exchange() -> Exchange:
    async def send(message: Any) -> None:
        del message

    return Exchange(asking(1), send)


def test_a_place_that_says_nothing_is_given_up() -> None:
    async def scene() -> None:
        task = asyncio.current_task()
        assert task is not None
        silent = Patience(exchange(), 0.01, lambda: False, last=0.01)
        with pytest.raises(BackendFailed, match=r"no word for 0\.01 s"), silent:
            await asyncio.Event().wait()
        assert task.cancelling() == 0, "what it did to the task is undone"

    asyncio.run(scene())


def test_two_verdicts_are_needed_without_a_last_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "AGAIN", 0.01)
    verdicts = [True, False, True, True]

    async def scene() -> None:
        with pytest.raises(BackendFailed), Patience(exchange(), 0.01, lambda: verdicts.pop(0), last=None):
            await asyncio.Event().wait()

    asyncio.run(scene())
    assert verdicts == []


def test_an_answer_that_has_begun_is_waited_for() -> None:
    async def scene() -> None:
        begun = exchange()
        await begun.begin(200, [], from_peer=False, extra={})
        judged = asyncio.Event()
        with Patience(begun, 0.0, lambda: True, last=0.0):
            asyncio.get_running_loop().call_later(0.01, judged.set)
            await judged.wait()
        assert begun.status == 200

    asyncio.run(scene())


def test_a_place_that_is_there_no_more_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "LOOK", 0.01)
    looks = iter((False, False, True))

    async def scene() -> None:
        gone = Patience(exchange(), 60, lambda: True, last=None, gone=lambda: next(looks, True))
        with pytest.raises(BackendFailed, match="gone without a word"), gone:
            await asyncio.Event().wait()

    asyncio.run(scene())
    assert next(looks, None) is None


def test_a_place_that_is_there_has_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "LOOK", 0.01)

    async def scene() -> None:
        there = Patience(exchange(), 0.05, lambda: False, last=0.05, gone=lambda: False)
        with pytest.raises(BackendFailed, match=r"no word for 0\.05 s"), there:
            await asyncio.Event().wait()

    asyncio.run(scene())


def test_errors_and_ends_pass() -> None:
    async def scene() -> None:
        with Patience(exchange(), 60, lambda: True, last=60):
            pass
        with pytest.raises(ValueError, match="odd"), Patience(exchange(), 60, lambda: True, last=60):
            raise ValueError("odd")

    asyncio.run(scene())


def test_a_client_that_leaves_at_the_same_moment_has_left() -> None:
    async def scene() -> None:
        working = asyncio.Event()

        async def work() -> None:
            with Patience(exchange(), 0.0, leave, last=0.0):
                working.set()
                await asyncio.Event().wait()

        def leave() -> bool:
            task.cancel()
            return True

        task = asyncio.create_task(work())
        with pytest.raises(asyncio.CancelledError):
            await task
        assert working.is_set()

    asyncio.run(scene())

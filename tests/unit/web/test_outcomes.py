"""What is told of a request that is over: to the figures and to the activity log."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from viiwork_core.contracts.policy import Outcome, Query
from viiwork_core.kvshare.turns import Usage
from viiwork_core.observe.events import EventLog
from viiwork_core.observe.metrics import Ended
from viiwork_core.proxy.body import Body
from viiwork_core.proxy.exchange import Exchange
from viiwork_core.proxy.request import InferenceRequest
from viiwork_core.testing.fake_clock import FakeClock
from viiwork_core.web.outcomes import Outcomes


class Scene:
    def __init__(self, model: str = "m") -> None:
        self.observed: list[Outcome] = []
        self.counted: list[Ended] = []
        self.events = EventLog(FakeClock(), history=10)
        self.outcomes = Outcomes(
            self.observed.append, lambda _exchange, _hop: None, self.counted.append, lambda name: name == "m"
        )
        request = InferenceRequest(
            id="r",
            path="/v1/chat/completions",
            target="/v1/chat/completions",
            headers=[],
            body=Body(b"{}"),
            query=Query(model=model, session=None, prompt_tokens=1),
            weight=1,
            stream=True,
            wants_usage=False,
            pin=None,
        )
        self.exchange = Exchange(request, self.send, trail=self.events.request(model, "r"))

    async def send(self, message: Any) -> None:
        del message

    def end(self, status: int, reason: str | None = None, *, hop: bool = False) -> Ended:
        self.outcomes.ended(self.exchange, status, reason, 1.25, hop=hop)
        return self.counted[-1]

    @property
    def messages(self) -> list[str]:
        return [event.message for event in self.events.events()]


def test_a_request_that_was_served_here() -> None:
    scene = Scene()
    scene.exchange.placed(1.0, backend="m/0")
    scene.exchange.queued_s, scene.exchange.first_byte_at = 0.5, 1.75
    scene.exchange.usage = Usage(9, 4, 3)
    asyncio.run(scene.exchange.finish())
    assert scene.end(200) == Ended(
        "m", 200, False, "m/0", queued_s=0.5, first_byte_s=0.75, prompt_tokens=9, cached_tokens=4, completion_tokens=3
    )
    assert scene.messages == ["m → m/0", "m → m/0 done (1.2s)"]
    assert [one.candidate for one in scene.observed] == ["m/0"]


def test_a_forward_waits_nowhere() -> None:
    scene = Scene()
    scene.exchange.placed(1.0, backend="m/0")
    asyncio.run(scene.exchange.finish())
    ended = scene.end(200, hop=True)
    assert (ended.forwarded, ended.queued_s) == (True, None)


@pytest.mark.parametrize(
    ("status", "started", "end"), [(499, True, "aborted by client"), (502, True, "aborted"), (502, False, "failed")]
)
def test_a_request_that_was_placed_and_not_served(status: int, started: bool, end: str) -> None:
    scene = Scene()
    scene.exchange.placed(1.0, peer="cellar")
    scene.exchange.status = 200 if started else None
    assert (scene.end(status, "why").status, scene.counted[-1].peer) == (status, "cellar")
    assert scene.messages == ["m → peer cellar", f"m → peer cellar {end} (1.2s)"]


@pytest.mark.parametrize(("status", "end"), [(429, "refused"), (499, "aborted by client")])
def test_a_request_that_got_no_place(status: int, end: str) -> None:
    scene = Scene()
    assert scene.end(status, "why").model == "m"
    assert scene.messages == [f"m {end} (1.2s)"]
    assert scene.observed == []


def test_a_name_that_a_client_made_up_goes_nowhere() -> None:
    scene = Scene("made up")
    assert scene.end(404, "not served") == Ended("", 404, False)
    assert scene.messages == []


def test_a_request_that_could_not_be_read_is_counted() -> None:
    scene = Scene()
    scene.outcomes.unread("r", 400, "no JSON", 0.1)
    assert scene.counted == [Ended("", 400, False)]

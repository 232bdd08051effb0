"""An answer that began with comments about a place in line."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from viiwork_core.contracts.policy import Query
from viiwork_core.proxy.body import Body
from viiwork_core.proxy.exchange import Exchange
from viiwork_core.proxy.request import InferenceRequest


class Scene:
    def __init__(self, http: str = "1.1") -> None:
        self.sent: list[dict[str, Any]] = []
        request = InferenceRequest(
            id="r",
            path="/v1/chat/completions",
            target="/v1/chat/completions",
            headers=[],
            body=Body(b"{}"),
            query=Query(model="m", session=None, prompt_tokens=1),
            weight=1,
            stream=True,
            wants_usage=False,
            pin=None,
        )
        self.exchange = Exchange(request, self.send, http=http, tells_place=True)

    async def send(self, message: Any) -> None:
        self.sent.append(message)

    @property
    def heads(self) -> list[dict[str, Any]]:
        return [one for one in self.sent if one["type"] == "http.response.start"]

    @property
    def body(self) -> bytes:
        return b"".join(one["body"] for one in self.sent if one["type"] == "http.response.body")

    @property
    def ended(self) -> bool:
        return not self.sent[-1].get("more_body", True)


def test_the_head_goes_out_once_and_the_answer_follows() -> None:
    async def scene() -> Scene:
        one = Scene()
        await one.exchange.tell_place(2)
        await one.exchange.tell_place(1)
        assert not one.exchange.started, "another route may still be tried"
        await one.exchange.begin(200, [(b"content-length", b"5")], from_peer=False, extra={})
        await one.exchange.pass_on(b"data: a\n\n")
        await one.exchange.finish()
        return one

    one = asyncio.run(scene())
    (head,) = one.heads
    assert head["status"] == 200
    assert (b"content-type", b"text/event-stream") in head["headers"]
    assert (b"x-request-id", b"r") in head["headers"]
    assert b"content-length" not in dict(head["headers"])
    assert one.body == b": queued position=2\n\n: queued position=1\n\ndata: a\n\n"
    assert (one.ended, one.exchange.status) == (True, 200)


@pytest.mark.parametrize(("http", "ended"), [("1.1", False), ("1.0", False), ("2", True)])
def test_an_error_is_an_event_and_a_broken_end_where_there_is_one(http: str, ended: bool) -> None:
    async def scene() -> Scene:
        one = Scene(http)
        await one.exchange.tell_place(1)
        await one.exchange.fail(b'{"error":{}}')
        await one.exchange.finish()
        return one

    one = asyncio.run(scene())
    assert one.body == b': queued position=1\n\ndata: {"error":{}}\n\n'
    assert one.ended is ended, "an HTTP/2 client would wait for ever"
    assert one.exchange.finished

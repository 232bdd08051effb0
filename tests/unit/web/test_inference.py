"""The handler of the inference paths: what a request's end is called, in the log, to the policy and to the client."""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from structlog.testing import capture_logs

from viiwork_core.clock import SystemClock
from viiwork_core.contracts.policy import Outcome
from viiwork_core.errors import AnswerCut, BackendFailed, NoFreeSlot, ViiworkError
from viiwork_core.kvshare.turns import Usage
from viiwork_core.observe.events import EventLog
from viiwork_core.observe.metrics import Ended
from viiwork_core.observe.otlp import Otlp
from viiwork_core.observe.traces import Traces
from viiwork_core.proxy.body import Body
from viiwork_core.proxy.budget import BodyBudget
from viiwork_core.proxy.exchange import Exchange
from viiwork_core.proxy.request import Whose
from viiwork_core.web.claims import Claims
from viiwork_core.web.inference import Inference
from viiwork_core.web.outcomes import Outcomes

Serve = Callable[[Exchange], Awaitable[None]]

BODY = b'{"model": "m", "stream": true}'


class Scene:
    """A handler over a stand-in for what serves, and an ASGI server that records."""

    def __init__(self, serve: Serve, *, http: str = "1.1", traces: Traces | None = None) -> None:
        self.traces = traces
        self.outcomes: list[Outcome] = []
        self.counted: list[Ended] = []
        self.events = EventLog(SystemClock(), history=10)
        self.sent: list[Any] = []
        self.leave = asyncio.Event()
        self.served = serve
        self.http = http
        self.raised: BaseException | None = None

    async def serve(self, exchange: Exchange) -> None:
        await self.served(exchange)

    async def identify(self, path: str, model: str, body: Body, named: str | None) -> Whose:
        del path, model, body
        return Whose(None if named is None else named.encode().hex())

    async def run(self, body: bytes = BODY, **headers: str) -> dict[str, Any]:
        """Serve one request; returns what was logged of it."""
        handler = Inference(
            entry=self,  # type: ignore[arg-type]  # stands in for the entry
            receiver=self,  # type: ignore[arg-type]  # and for the receiver
            claims=Claims(None, lambda _: ()),
            saw=lambda _session, _turn: None,
            identify=self.identify,
            prompt_tokens=lambda _model, size: size,
            max_body=1000,
            budget=BodyBudget(2000),
            stream_wait=False,
            clock=SystemClock(),
            events=self.events,
            outcomes=Outcomes(
                self.outcomes.append,
                lambda _exchange, _hop: None,
                self.counted.append,
                lambda model: model == "m",
                traces=self.traces,
            ),
        )
        incoming = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Any:
            if incoming:
                return incoming.pop(0)
            await self.leave.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            self.sent.append(message)

        scope = {
            "path": "/v1/chat/completions",
            "raw_path": b"/v1/chat/completions",
            "query_string": b"",
            "http_version": self.http,
            "headers": [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()],
        }
        with capture_logs() as logs:
            try:
                await handler(scope, receive, send)
            except RuntimeError as error:
                self.raised = error
        (event,) = [one for one in logs if one["event"] == "request"]
        return dict(event)

    @property
    def statuses(self) -> list[int]:
        return [one["status"] for one in self.sent if one["type"] == "http.response.start"]

    @property
    def body(self) -> bytes:
        return b"".join(one["body"] for one in self.sent if one["type"] == "http.response.body")

    @property
    def ended(self) -> bool:
        return any(one["type"] == "http.response.body" and not one["more_body"] for one in self.sent)


async def begin(exchange: Exchange) -> None:
    exchange.placed(1.0, backend="m/0")
    exchange.streams = True
    await exchange.begin(200, [], from_peer=False, extra={})
    await exchange.pass_on(b"data: a\n\n")


async def served(exchange: Exchange) -> None:
    await begin(exchange)
    exchange.first_byte_at = 1.5
    exchange.usage = Usage(9, 4, 3)
    await exchange.finish()


def test_a_request_that_was_served() -> None:
    scene = Scene(served)
    event = asyncio.run(scene.run(x_request_id="mine", x_session_id="s"))
    assert (scene.statuses, scene.ended) == ([200], True)
    assert (event["request_id"], event["status"], event["reason"]) == ("mine", 200, None)
    assert (event["model"], event["backend"], event["ttft_ms"]) == ("m", "m/0", 500)
    assert (event["tokens_in"], event["tokens_cached"], event["tokens_out"]) == (9, 4, 3)
    assert scene.outcomes == [Outcome("m", "m/0", b"s".hex(), 200, 9, 4, 3, 500.0)]


def test_a_request_that_another_node_served_is_that_node_s_outcome() -> None:
    async def forwarded(exchange: Exchange) -> None:
        exchange.placed(1.0, backend="m/0")
        exchange.placed(2.0, peer="other")
        await exchange.begin(200, [], from_peer=True, extra={})
        await exchange.finish()

    scene = Scene(forwarded)
    event = asyncio.run(scene.run())
    assert (event["backend"], event["peer"]) == (None, "other")
    assert [one.candidate for one in scene.outcomes] == ["other"]


@pytest.mark.parametrize("started", [False, True])
def test_a_client_that_leaves_is_499_and_is_sent_nothing(started: bool) -> None:
    async def hangs(exchange: Exchange) -> None:
        if started:
            await begin(exchange)
        scene.leave.set()
        await asyncio.Event().wait()

    scene = Scene(hangs)
    event = asyncio.run(scene.run())
    assert (event["status"], event["reason"]) == (499, "the client left")
    assert scene.statuses == ([200] if started else [])
    assert not scene.ended
    assert [one.status for one in scene.outcomes] == ([499] if started else [])


@pytest.mark.parametrize("after", [0.0, 0.2])
def test_the_server_s_own_cancellation_is_nobody_s_leaving(after: float) -> None:
    """Before anybody listens for the client, and while somebody does."""
    begun = asyncio.Event()

    async def hangs(exchange: Exchange) -> None:
        await begin(exchange)
        begun.set()
        await asyncio.Event().wait()

    async def cancelled(scene: Scene) -> None:
        running = asyncio.create_task(scene.run())
        await begun.wait()
        await asyncio.sleep(after)
        running.cancel()
        await asyncio.wait([running])
        assert running.cancelled()

    scene = Scene(hangs)
    asyncio.run(cancelled(scene))
    assert [one.status for one in scene.outcomes] == [500], "the node's own end"


def test_a_client_that_left_before_anybody_listened_is_noticed() -> None:
    async def leaves_at_once(exchange: Exchange) -> None:
        scene.leave.set()
        await asyncio.sleep(0)
        await begin(exchange)
        await asyncio.Event().wait()

    scene = Scene(leaves_at_once)
    assert asyncio.run(scene.run())["status"] == 499


def test_a_client_that_leaves_after_the_end_changes_nothing() -> None:
    async def leaves_then(exchange: Exchange) -> None:
        await begin(exchange)
        exchange.finished = True
        scene.leave.set()
        await asyncio.sleep(0.01)
        await exchange.finish()

    scene = Scene(leaves_then)
    assert asyncio.run(scene.run())["status"] == 200
    assert scene.ended


@pytest.mark.parametrize("error", [NoFreeSlot("no", retry_after=2), BackendFailed("no")])
def test_an_error_before_the_first_byte_is_an_answer(error: ViiworkError) -> None:
    async def fails(exchange: Exchange) -> None:
        raise error

    scene = Scene(fails)
    event = asyncio.run(scene.run())
    assert (scene.statuses, scene.ended) == ([error.status], True)
    assert json.loads(scene.body)["error"]["code"] == error.code
    assert (event["status"], event["reason"], event["backend"]) == (error.status, "no", None)
    assert scene.outcomes == []


@pytest.mark.parametrize("error", [AnswerCut("cut"), BackendFailed("late")])
@pytest.mark.parametrize("http", ["1.1", "1.0", "2"])
def test_an_error_after_the_first_byte_is_a_cut(error: ViiworkError, http: str) -> None:
    async def cut(exchange: Exchange) -> None:
        await begin(exchange)
        exchange.last = b"never sent"
        raise error

    scene = Scene(cut, http=http)
    event = asyncio.run(scene.run())
    assert scene.statuses == [200]
    assert (event["status"], event["reason"]) == (502, error.message)
    assert [one.status for one in scene.outcomes] == [502]
    assert scene.ended is (http == "2"), "an HTTP/2 client would wait for ever, the others see the connection's end"
    if http == "1.1":
        assert scene.body == b"data: a\n\n"
    else:
        assert json.loads(scene.body.rsplit(b"data: ", 1)[1])["error"]["code"] == error.code


@pytest.mark.parametrize("http", ["1.1", "1.0", "2"])
def test_a_cut_in_an_answer_that_is_no_stream_adds_nothing_to_it(http: str) -> None:
    async def cut(exchange: Exchange) -> None:
        await begin(exchange)
        exchange.streams = False
        raise AnswerCut("cut")

    scene = Scene(cut, http=http)
    asyncio.run(scene.run())
    assert scene.body == b"data: a\n\n"


def test_a_defect_is_500_and_nobody_s_leaving() -> None:
    async def breaks(exchange: Exchange) -> None:
        raise RuntimeError("a defect")

    scene = Scene(breaks)
    event = asyncio.run(scene.run())
    assert event["status"] == 500
    assert str(scene.raised) == "a defect", "the server tells it with its trace"


def test_a_bad_body_is_logged_too() -> None:
    scene = Scene(served)
    event = asyncio.run(scene.run(b"nonsense", x_request_id="bad"))
    assert (event["request_id"], event["status"]) == ("bad", 400)
    assert "not a JSON object" in event["reason"]
    assert scene.outcomes == []


TRACING = ("/observe/traces.py", "/observe/otlp.py", "/web/tracing.py", "/opentelemetry/")


def calls_of_tracing(traces: Traces | None) -> Counter[str]:
    """The functions that belong to traces and were called while two requests were served, one of them in vain."""
    called = Counter[str]()

    def note(frame: Any, event: str, _: Any) -> None:
        name = frame.f_code.co_filename
        if event == "call" and any(part in name for part in TRACING):
            called[f"{name}:{frame.f_code.co_name}"] += 1

    async def both() -> None:
        scene = Scene(served, traces=traces)
        sys.setprofile(note)
        try:
            await scene.run()
            await scene.run(b"nonsense")
        finally:
            sys.setprofile(None)

    asyncio.run(both())
    return called


def test_without_traces_nothing_of_them_is_called() -> None:
    assert calls_of_tracing(None) == Counter()


def test_with_traces_it_is() -> None:
    """Else the test before this one would say nothing."""
    traces = Otlp("node", "1", SystemClock(), endpoint="http://127.0.0.1:9", sample_ratio=0.0)
    names = {name.rpartition(":")[2] for name in calls_of_tracing(traces)}
    assert {"began", "ended", "unread", "ending"} <= names

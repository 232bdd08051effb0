"""The account of a request: what it says when somebody asks, and that it never says what was asked."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from viiwork_core.contracts.policy import Candidate, Query, Score
from viiwork_core.kvshare.turns import Usage
from viiwork_core.proxy.account import REMEMBERED, Accounts, End, told, whole
from viiwork_core.proxy.body import Body
from viiwork_core.proxy.exchange import Exchange, Try
from viiwork_core.proxy.request import Whose, build
from viiwork_core.routing.choice import Choice
from viiwork_core.routing.sessions import Found
from viiwork_core.routing.ticket import Ticket
from viiwork_core.testing.fake_clock import FakeClock

SESSION = "5e" * 16
PATH = "/v1/chat/completions"
WARM = Candidate("warm", False, 4, 1, rtt_ms=2.0, held_tokens=900, score=Score(100.0, 1000.0))
COLD = Candidate("cold", True, 4, 4, rtt_ms=0.0)

WHOLE = {
    "request_id": "r",
    "node": "here",
    "model": "m",
    "path": PATH,
    "stream": True,
    "session": {"found": "conversation", "hash": SESSION[:12], "begins": False, "continues": True},
    "prompt_tokens_estimated": 1000,
    "prefer": ["far"],
    "state": "over",
    "queued_ms": 1000,
    "tries": [{"place": "peer cold", "ms": 250, "reason": "cold has no room"}],
    "peer": "warm",
    "first_token_ms": 750,
    "prompt_tokens": 1010,
    "cached_tokens": 900,
    "completion_tokens": 20,
    "status": 200,
    "total_ms": 3000,
}

CHOICE = {
    "after_ms": 1500,
    "chosen": "warm",
    "policy": "fastest",
    "rule": "fastest says warm",
    "candidates": [
        {
            "id": "warm",
            "rank": 1,
            "free": 1,
            "slots": 4,
            "predicted_ms": 202,
            "price_ms": 2,
            "measured": True,
            "held_tokens": 900,
            "rtt_ms": 2.0,
        },
        {
            "id": "cold",
            "rank": 2,
            "free": 4,
            "slots": 4,
            "predicted_ms": 2200,
            "price_ms": 1,
            "measured": False,
            "rtt_ms": 0.0,
        },
    ],
}


def why(policy: str, query: Query, candidates: Sequence[Candidate], first: str) -> tuple[str, Mapping[str, float]]:
    del query
    return f"{policy} says {first}", {one.id: 1.0 + number for number, one in enumerate(candidates)}


class Scene:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.accounts = Accounts(self.clock)

    def exchange(self, rid: str = "r", *, pin: str | None = None, prefer: tuple[str, ...] = ()) -> Exchange:
        async def send(message: Any) -> None:
            del message

        scope = {"path": PATH, "raw_path": PATH.encode(), "query_string": b"", "headers": []}
        body = Body(b'{"model":"m","stream":true,"messages":[{"role":"user","content":"a secret"}]}')
        whose = Whose(SESSION, continues=True, found=Found.CHAIN)
        request = build(scope, body, whose, pin=pin, prefer=prefer, rid=rid, prompt_tokens=1000)
        found = Exchange(request, send)
        found.ticket = Ticket(request.query, 1, 20.0, pin=pin, prefer=prefer, request=rid)
        return found

    def chose(self, exchange: Exchange, *ranking: str, chosen: str | None = "warm", by: str | None = "fastest") -> None:
        assert exchange.ticket is not None
        query = Query("m", SESSION, 1000, continues=True, typical=Score(200.0, 2000.0))
        choice = Choice(self.clock.monotonic(), query, (COLD, WARM), ranking, chosen, by)
        exchange.ticket.choices.append(choice)

    def told(self, rid: str = "r") -> dict[str, Any]:
        account = self.accounts.find(rid)
        assert account is not None
        return told(account, "here", why)


def test_the_whole_story() -> None:
    scene = Scene()
    exchange = scene.exchange(prefer=("far",))
    scene.accounts.began(exchange, hop=False, before=0.5)
    scene.clock.advance(1.0)
    scene.chose(exchange, "warm", "cold")
    exchange.queued_s = 1.0
    exchange.tries.append(Try("peer cold", 0.25, "cold has no room"))
    exchange.placed(scene.clock.monotonic(), peer="warm")
    exchange.first_byte_at = exchange.first_token_at = scene.clock.monotonic() + 0.75
    exchange.usage = Usage(1010, 900, 20)
    scene.accounts.ended(exchange, End(200, None, 3.0))
    found = scene.told()
    assert found.pop("at") == round(scene.clock.wall() - 1.5, 3)
    (choice,) = found.pop("choices")
    assert found == WHOLE
    assert choice == CHOICE


def test_who_waits_is_told_how_long_so_far() -> None:
    scene = Scene()
    exchange = scene.exchange()
    assert exchange.ticket is not None
    scene.accounts.began(exchange, hop=False, before=0.0)
    exchange.ticket.waited, exchange.ticket.queued_at = 1.0, scene.clock.monotonic()
    scene.clock.advance(0.5)
    assert scene.told()["queued_ms"] == 1500
    exchange.queued_s = 1.75
    exchange.placed(scene.clock.monotonic(), backend="m/0")
    assert scene.told()["queued_ms"] == 1750


def test_a_request_under_way_can_be_asked_about() -> None:
    scene = Scene()
    exchange = scene.exchange()
    scene.accounts.began(exchange, hop=False, before=0.0)
    assert scene.told()["state"] == "waiting"
    exchange.placed(scene.clock.monotonic(), backend="m/0")
    assert scene.told()["state"] == "running"
    assert "status" not in scene.told()
    scene.accounts.ended(exchange, End(200, None, 1.0))
    assert scene.told()["state"] == "over"


def test_rules_that_leave_the_policy_no_choice() -> None:
    def rule(*ranking: str, chosen: str | None = "warm", by: str | None = "fastest", pin: str | None = None) -> str:
        scene = Scene()
        exchange = scene.exchange(pin=pin)
        scene.accounts.began(exchange, hop=False, before=0.0)
        scene.chose(exchange, *ranking, chosen=chosen, by=by)
        return str(scene.told()["choices"][0]["rule"])

    assert rule("warm", by=None) == "the client prefers it"
    assert rule("warm", pin="warm") == "the client asks for it alone"
    assert rule("cold", "warm") == "cold did not take it; it was first: fastest says cold"
    assert rule(chosen=None).startswith("to wait for the full place")
    assert rule("cold", chosen=None) == "none of these took it; first of them: fastest says cold"


def test_neither_the_prompt_nor_an_engine_s_words_are_told() -> None:
    scene = Scene()
    exchange = scene.exchange()
    scene.accounts.began(exchange, hop=False, before=0.0)
    exchange.tries.append(Try("m/0", 0.1, "the engine failed: cannot read\n'a secret'"))
    scene.accounts.ended(exchange, End(502, "no route could serve it: the engine failed: 'a secret'", 1.0))
    account = scene.accounts.find("r")
    assert "secret" not in repr(scene.told())
    assert scene.told()["tries"][0]["reason"] == "the engine failed"
    assert account is not None
    assert not any(isinstance(getattr(account, one), (Body, Exchange)) for one in account.__struct_fields__)


def test_only_so_many_are_remembered() -> None:
    scene = Scene()
    for number in range(REMEMBERED + 5):
        exchange = scene.exchange(str(number))
        scene.accounts.began(exchange, hop=False, before=0.0)
        scene.accounts.ended(exchange, End(200, None, 1.0))
    assert [scene.accounts.find(str(number)) is None for number in (0, 4, 5, REMEMBERED + 4)] == [1, 1, 0, 0]
    assert scene.accounts._under_way == {}


def test_of_two_with_one_id_the_later_is_told() -> None:
    scene = Scene()
    first, second = scene.exchange(), scene.exchange()
    scene.accounts.began(first, hop=False, before=0.0)
    scene.accounts.began(second, hop=False, before=0.0)
    scene.accounts.ended(first, End(500, None, 1.0))
    assert scene.told()["state"] == "waiting"
    scene.accounts.ended(second, End(200, None, 1.0))
    assert scene.told()["status"] == 200


def test_the_node_that_chose_tells_the_story() -> None:
    chose, ran = {"node": "a"}, {"node": "b", "forwarded_here": True}
    assert whole([ran, chose]) is chose
    assert whole([ran]) is ran
    assert whole([]) is None


def test_a_forward_is_told_as_what_it_was() -> None:
    scene = Scene()
    exchange = scene.exchange()
    exchange.ticket = None
    scene.accounts.began(exchange, hop=True, before=0.0)
    asyncio.run(exchange.begin(200, [], from_peer=False, extra={}))
    found = scene.told()
    assert found["forwarded_here"]
    assert found["session"]["found"] == "forward"
    assert "choices" not in found

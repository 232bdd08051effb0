"""Whose conversation a request belongs to, and what a node keeps of conversations: little, however many there are."""

from __future__ import annotations

import asyncio
import gc
import json
from pathlib import Path
from typing import Any

import pytest

from viiwork_core.engines.slots import SlotBook
from viiwork_core.kvshare.turns import Usage
from viiwork_core.node.learning import RESPONSES_LIMIT, Learning
from viiwork_core.node.models import Models
from viiwork_core.node.speeds import Speeds
from viiwork_core.proxy.account import REMEMBERED, Accounts, End
from viiwork_core.proxy.body import Body
from viiwork_core.proxy.exchange import Exchange
from viiwork_core.proxy.reply import Reply
from viiwork_core.proxy.request import Whose, build
from viiwork_core.routing.heads import RELAYED_LIMIT
from viiwork_core.routing.published import LIMIT
from viiwork_core.routing.sessions import Found
from viiwork_core.security.secret import SessionKeys
from viiwork_core.testing.fake_clock import FakeClock

CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
SESSIONS = 100_000


class Scene:
    def __init__(self, folder: Path) -> None:
        self.clock = FakeClock()
        speeds = Speeds(Models((), lambda model: pytest.fail(str(model))), folder / "perf.json", self.clock)
        self.learning = Learning("here", speeds, SessionKeys(None, mesh="test"), SlotBook(self.clock), self.clock)

    def whose(self, body: dict[str, Any], path: str = CHAT, named: str | None = None) -> Whose:
        raw = Body(json.dumps({"model": "m", **body}).encode())
        return asyncio.run(self.learning.identify(path, "m", raw, named))

    def served(self, whose: Whose, text: str = "fine", *, path: str = CHAT, rid: str = "r") -> Exchange:
        """A request that ended here."""

        async def send(message: Any) -> None:
            del message

        scope = {"path": path, "raw_path": path.encode(), "query_string": b"", "headers": []}
        exchange = Exchange(build(scope, Body(b'{"model":"m"}'), whose, pin=None, rid=rid), send)
        exchange.placed(self.clock.monotonic(), backend="m/0")
        exchange.status, exchange.usage, exchange.reply = 200, Usage(10, 5, 5), Reply(stream=False)
        exchange.reply.text, exchange.reply.id = text, rid
        self.learning.ended(exchange, hop=False)
        return exchange


def user(content: object) -> dict[str, object]:
    return {"role": "user", "content": content}


def answer(text: str) -> dict[str, object]:
    return {"role": "assistant", "content": text}


def test_how_a_session_is_found(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    first = scene.whose({"messages": [user("a")]})
    assert (first.found, first.begins, first.continues) == (Found.NEW, True, False)
    scene.served(first)
    then = scene.whose({"messages": [user("a"), answer("fine"), user("b")]})
    assert (then.found, then.session, then.continues) == (Found.CHAIN, first.session, True)
    named = scene.whose({"messages": [user("a"), answer("fine"), user("b")]}, named="mine")
    assert (named.found, named.begins, named.continues) == (Found.HEADER, False, False)
    assert named.session != first.session
    assert scene.whose({"prompt": "a"}, "/v1/completions") == Whose()
    hinted = scene.whose({"prompt": "a", "prompt_cache_key": "me"}, "/v1/completions")
    assert (hinted.found, hinted.session is not None) == (Found.HINT, True)


def test_a_response_is_gone_on_from(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    first = scene.whose({"input": [user("a")]}, RESPONSES)
    scene.served(first, path=RESPONSES, rid="resp-1")
    then = scene.whose({"input": [user("b")], "previous_response_id": "resp-1"}, RESPONSES)
    assert (then.found, then.session) == (Found.RESPONSE, first.session)
    assert scene.whose({"input": [user("b")], "previous_response_id": "x"}, RESPONSES).found is Found.NEW


def test_a_text_in_place_of_messages_is_the_user_s_first(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    first = scene.whose({"input": "a"}, RESPONSES)
    scene.served(first, path=RESPONSES, rid="resp-1")
    then = scene.whose({"input": "b", "previous_response_id": "resp-1"}, RESPONSES)
    assert (then.found, then.session) == (Found.RESPONSE, first.session)
    whole = scene.whose({"input": [user("a"), answer("fine"), user("b")]}, RESPONSES)
    assert (whole.found, whole.session) == (Found.CHAIN, first.session)


def test_a_named_session_without_messages_is_known_again(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    first = scene.whose({"prompt": "a"}, "/v1/completions", named="mine")
    assert not first.continues
    scene.served(first, path="/v1/completions")
    assert scene.whose({"prompt": "ab"}, "/v1/completions", named="mine").continues


def test_a_body_of_many_parts_is_one_conversation(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    parts = [{"type": "text", "text": f"part {number}"} for number in range(25)]
    messages = [user(parts) if turn % 2 == 0 else answer(f"answer {turn}") for turn in range(199)]
    first = scene.whose({"messages": messages})
    assert first.begins
    scene.served(first, "done")
    then = scene.whose(
        {"messages": [*messages, answer("done"), user([*parts, {"type": "image_url", "image_url": {}}])]}
    )
    assert (then.session, then.found) == (first.session, Found.CHAIN)
    whole = [user([{"type": "text", "text": "x"}] * 5000) for _ in range(200)]
    assert scene.whose({"messages": whole}).begins, "a million parts are hashed as well"


@pytest.mark.parametrize("value", ["x", "\xff\xfe\x00 odd", "é" * 4096, "a" * 100_000])
def test_a_session_s_name_may_be_anything(tmp_path: Path, value: str) -> None:
    scene = Scene(tmp_path)
    found = scene.whose({"messages": [user("a")]}, named=value)
    assert found.session is not None
    assert len(found.session) == 32
    assert scene.whose({"messages": [user("b")]}, named=value).session == found.session
    assert scene.whose({"messages": [user("b")]}, named=value + "x").session != found.session


def test_an_empty_name_is_none(tmp_path: Path) -> None:
    assert Scene(tmp_path).whose({"messages": [user("a")]}, named="").found is Found.NEW


def test_a_hundred_thousand_sessions_take_no_more_room_than_the_last_of_them(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    accounts = Accounts(scene.clock)

    def talk(first: int, last: int) -> int:
        for number in range(first, last):
            whose = Whose(f"{number:032x}", link=number, found=Found.HEADER)
            exchange = scene.served(whose, f"answer {number}", path=RESPONSES, rid=f"r{number}")
            accounts.began(exchange, hop=False, before=0.0)
            accounts.ended(exchange, End(200, None, 1.0))
            scene.clock.advance(3600 / SESSIONS)
        gc.collect()
        return len(gc.get_objects())

    bound = talk(0, SESSIONS // 10)
    assert talk(SESSIONS // 10, SESSIONS) < bound + 1000
    learning = scene.learning
    assert len(learning._conversations._relayed) == len(learning._conversations._relayed_at) == RELAYED_LIMIT
    assert len(learning._published._models["m"]) == LIMIT
    assert len(learning._responses) == RESPONSES_LIMIT
    assert len(accounts._over) == REMEMBERED

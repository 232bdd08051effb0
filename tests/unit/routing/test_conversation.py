"""How a request is recognised as the next of a conversation."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from viiwork_core.routing.conversation import MARK_CHARACTERS, Chain, Hashes, Mark, beginning
from viiwork_core.routing.heads import RELAYED_LIMIT, REMEMBERED_POINTS, Conversations, Head, Kind

HASHES = Hashes(b"k" * 32)
SYSTEM = {"role": "system", "content": "You are a coding agent."}
TASK = {"role": "user", "content": "Build the todo app."}


def chain(*messages: Any, model: str = "m", hashes: Hashes = HASHES) -> Chain:
    return hashes.chain([model.encode()], msgspec.json.decode(json.dumps(messages), type=list[msgspec.Raw]))


def reply(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def call(name: str) -> dict[str, Any]:
    function = {"name": "read", "arguments": "{}"}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": name, "type": "function", "function": function}],
    }


def head(request: Chain, said: dict[str, Any], session: str = "s", turn: int = 1, tokens: int = 100) -> Head:
    assert request.last is not None
    ids = [one["id"] for one in said.get("tool_calls", ())]
    mark = HASHES.mark(call=ids[0] if ids else None, text=said["content"] or "")
    return Head(request.last, mark, session, tokens, turn)


def test_a_request_that_extends_another_is_its_conversation() -> None:
    first = [SYSTEM, TASK]
    known = Conversations()
    known.relayed("a", "m", head(chain(*first), reply("I will.")), 0.0)
    found = known.match("m", chain(*first, reply("I will."), {"role": "user", "content": "Go on."}))
    assert found is not None
    assert (found.session, found.at) == ("s", 1)
    assert known.match("m", chain(*first)) is None, "the same request once more is a first turn"
    assert known.match("other", chain(*first, reply("I will."), TASK)) is None


def test_eight_agents_with_one_opening_part_at_the_reply() -> None:
    known = Conversations()
    for agent in range(8):
        known.relayed("a", "m", head(chain(SYSTEM, TASK), reply(f"Plan {agent}: begin"), f"s{agent}"), float(agent))
    for agent in range(8):
        found = known.match("m", chain(SYSTEM, TASK, reply(f"Plan {agent}: begin"), TASK))
        assert found is not None
        assert found.session == f"s{agent}"
    assert known.match("m", chain(SYSTEM, TASK, reply("Something else"), TASK)) is None


def test_tool_calls_tell_replies_apart_by_their_id() -> None:
    known = Conversations()
    for agent in ("x", "y"):
        known.relayed("a", "m", head(chain(SYSTEM, TASK), call(f"call_{agent}"), agent), 0.0)
    result = {"role": "tool", "tool_call_id": "call_y", "content": "text"}
    found = known.match("m", chain(SYSTEM, TASK, call("call_y"), result))
    assert found is not None
    assert found.session == "y"


def thoughts(agent: str) -> dict[str, Any]:
    return {"type": "reasoning", "id": f"rs_{agent}", "content": [{"type": "reasoning_text", "text": f"hm {agent}"}]}


def item_call(agent: str) -> dict[str, Any]:
    return {"type": "function_call", "id": f"fc_{agent}", "call_id": f"call_{agent}", "name": "read", "arguments": "{}"}


def item_text(agent: str) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": f"I am {agent}"}]}


@pytest.mark.parametrize("repeats_thoughts", [True, False])
@pytest.mark.parametrize("item", [item_call, item_text])
def test_items_of_a_response_tell_replies_apart(item: Any, repeats_thoughts: bool) -> None:
    known = Conversations()
    for agent in ("x", "y", "z"):
        said = item(agent)
        text = "" if "call_id" in said else said["content"][0]["text"]
        mark = HASHES.mark(call=said.get("call_id"), text=text)
        last = chain(SYSTEM, TASK).last
        assert last is not None
        known.relayed("a", "m", Head(last, mark, agent, 100, 1), 0.0)
    before = [thoughts("y")] if repeats_thoughts else []
    result = {"type": "function_call_output", "call_id": "call_y", "output": "text"}
    found = known.match("m", chain(SYSTEM, TASK, *before, item("y"), result))
    assert found is not None
    assert found.session == "y"


def test_a_compacted_history_begins_anew() -> None:
    known = Conversations()
    known.relayed("a", "m", head(chain(SYSTEM, TASK), reply("I will.")), 0.0)
    assert known.match("m", chain(SYSTEM, {"role": "user", "content": "Summary: ..."}, reply("I will."), TASK)) is None


def test_the_longest_earlier_request_counts() -> None:
    known = Conversations()
    short, long = [SYSTEM, TASK], [SYSTEM, TASK, reply("One."), TASK]
    known.relayed("a", "m", head(chain(*short), reply("One."), "old"), 0.0)
    known.relayed("a", "m", head(chain(*long), reply("Two."), "new", turn=2), 1.0)
    found = known.match("m", chain(*long, reply("Two."), TASK))
    assert found is not None
    assert (found.session, found.at) == ("new", 3)


def test_how_a_message_is_written_does_not_matter() -> None:
    plain = chain(SYSTEM, TASK)
    part = {"type": "text", "text": TASK["content"], "cache_control": {"type": "ephemeral"}}
    assert chain(SYSTEM, {"content": [part], "role": "user"}).links == plain.links
    picture = {"type": "image_url", "image_url": {"url": "data:..."}}
    marked = {**picture, "cache_control": {"type": "ephemeral"}}
    assert chain({"role": "user", "content": [picture]}).links == chain({"role": "user", "content": [marked]}).links


@pytest.mark.parametrize(
    "other",
    [
        {"role": "assistant", "content": TASK["content"]},
        {"role": "user", "content": TASK["content"] + " "},
        {"role": "user", "content": [{"type": "text", "text": "Build "}, {"type": "text", "text": "the todo app."}]},
        {"role": "user", "content": None, "tool_calls": []},
        {"type": "function_call_output", "output": "x"},
    ],
)
def test_what_a_message_says_does(other: dict[str, Any]) -> None:
    assert chain(SYSTEM, other).links != chain(SYSTEM, TASK).links
    assert chain(SYSTEM, other).links[0] == chain(SYSTEM, TASK).links[0]


def test_model_and_key_are_part_of_it() -> None:
    assert chain(TASK).links != chain(TASK, model="other").links
    assert chain(TASK).links != chain(TASK, hashes=Hashes(b"z" * 32)).links


@pytest.mark.parametrize("odd", [1, None, "text", [], {}, {"role": 5}, {"content": {"a": 1}}, {"content": [1, "x"]}])
def test_odd_messages_are_hashed_all_the_same(odd: Any) -> None:
    made = chain(SYSTEM, odd, TASK)
    assert len(set(made.links)) == 3
    assert made.mark(1).call is None
    assert chain(SYSTEM, odd, TASK).links == made.links


def test_a_mark_is_the_beginning_without_its_white_space() -> None:
    long = "word " * 100
    assert HASHES.mark(call=None, text="  " + long) == HASHES.mark(call=None, text=long.replace(" ", "\n") + "and more")
    assert HASHES.mark(call=None, text=long) != HASHES.mark(call=None, text="other " + long)
    assert len(beginning(long)) <= MARK_CHARACTERS
    assert Mark().fits(HASHES.mark(call="x", text="y"))


@given(st.text(max_size=300))
def test_what_a_client_repeats_fits_what_was_relayed(text: str) -> None:
    relayed = HASHES.mark(call=None, text=text)
    assert chain(TASK, reply(text)).mark(1).fits(relayed)


def test_a_report_tells_where_a_conversation_is_held() -> None:
    known = Conversations()
    one = head(chain(SYSTEM, TASK), reply("One."))
    known.report("a", [("m", [one.report()])], 1.0)
    assert known.at("a", "m", "s") == one
    assert known.at("b", "m", "s") is None
    assert known.known("m", "s")
    known.report("a", [], 2.0)
    assert known.at("a", "m", "s") is None
    assert not known.known("m", "s")
    assert known.match("m", chain(SYSTEM, TASK, reply("One."), TASK)) is None


def test_what_was_relayed_counts_until_a_later_report_says_otherwise() -> None:
    known = Conversations()
    known.report("a", [], 1.0)
    one = head(chain(SYSTEM, TASK), reply("One."))
    known.relayed("a", "m", one, 2.0)
    assert known.at("a", "m", "s") == one
    known.report("a", [], 1.5)
    assert known.at("a", "m", "s") == one
    known.report("a", [], 3.0)
    assert known.at("a", "m", "s") is None
    found = known.match("m", chain(SYSTEM, TASK, reply("One."), TASK))
    assert found is not None, "who it is stays known, though nobody holds it"


def test_the_newer_turn_counts() -> None:
    known = Conversations()
    old, new = (head(chain(SYSTEM, TASK), reply("x"), turn=turn) for turn in (1, 2))
    known.report("a", [("m", [new.report()])], 1.0)
    known.relayed("a", "m", old, 2.0)
    assert known.at("a", "m", "s") == new


def test_a_live_cache_is_preferred_among_equals() -> None:
    known = Conversations()
    one = head(chain(SYSTEM, TASK), reply("x"), "replica", turn=5)
    known.report("a", [("m", [Head(one.link, one.mark, "replica", 9, 5, Kind.REPLICA).report()])], 1.0)
    known.report("b", [("m", [Head(one.link, one.mark, "live", 9, 1).report()])], 1.0)
    found = known.match("m", chain(SYSTEM, TASK, reply("x"), TASK))
    assert found is not None
    assert found.session == "live"


def test_going_back_a_turn_is_still_the_conversation() -> None:
    known = Conversations()
    messages: list[Any] = [SYSTEM]
    for turn in range(1, 9):
        messages.append(TASK)
        known.relayed("a", "m", head(chain(*messages), reply(f"r{turn}"), turn=turn), float(turn))
        messages.append(reply(f"r{turn}"))
    back = len(messages) - 2 * (REMEMBERED_POINTS - 1)
    found = known.match("m", chain(*messages[:back], TASK))
    assert found is not None
    assert found.session == "s"


def test_memory_is_bounded() -> None:
    known = Conversations()
    for n in range(RELAYED_LIMIT + 500):
        asked = chain({"role": "user", "content": str(n)})
        known.relayed("a", "m", head(asked, reply("x"), f"s{n}"), float(n))
    assert not known.known("m", "s0")
    assert known.known("m", f"s{RELAYED_LIMIT + 499}")
    assert len(known._relayed) == len(known._relayed_at) == RELAYED_LIMIT


def test_a_head_goes_through_a_report_unchanged() -> None:
    whole = head(chain(SYSTEM, TASK), call("x"), "0" * 32)
    bare = Head(1, Mark(), "f" * 32, 0, 0, Kind.REPLICA, "m/0")
    for one in (whole, bare):
        assert Head.read(one.report()) == one

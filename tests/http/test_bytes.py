"""Bytes through: in the same order, with the same borders in time, and with nothing added or lost."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Sequence
from typing import Any

import pytest
from http_node import Answer, Node, ask, chat, connected, script, soon, streamed

EMOJI = 'data: {"choices":[{"index":0,"delta":{"content":"👩‍💻 é 你好 𝄞"}}]}\n\n'.encode()
TOOLS = b"".join(
    b'data: {"choices":[{"index":0,"delta":' + delta + b"}]}\n\n"
    for delta in (
        b'{"role":"assistant","content":null}',
        b'{"tool_calls":[{"index":0,"id":"call_1","type":"function","function":{"name":"f","arguments":""}}]}',
        b'{"tool_calls":[{"index":0,"function":{"arguments":"{\\"a\\""}}]}',
        b'{"tool_calls":[{"function":{"arguments":":1}"},"index":0}]}',
        b'{"tool_calls":[{"index":1,"id":"call_2","function":{"name":"g","arguments":"{}"}}],"x":[1e400,-0.0]}',
    )
)
ODD = (
    b': ping\n\nevent: note\nid: 3\nretry: 10\ndata: {"unknown": true}\ndata: more\n\n'
    b':\n\n\n\ndata:{"a":1}\r\n\r\n\xff\xfe\n\n'
)
DONE = b"data: [DONE]\n\n"
STREAMS = {"emoji": EMOJI * 3, "tools": TOOLS, "odd": ODD, "crlf": EMOJI.replace(b"\n", b"\r\n") * 2}


def pieces(text: bytes, size: int) -> list[bytes]:
    return [text[at : at + size] for at in range(0, len(text), size)]


def got(node: Node, kind: str, steps: list[list[Any]] | None, **more: Any) -> Answer:
    headers: Sequence[tuple[str, str]] = more.pop("headers", ())
    return asyncio.run(ask(node, chat(kind, steps, **more), headers=headers))


def asked(node: Node, kind: str) -> tuple[dict[str, list[str]], bytes]:
    """Headers and body of what the engine was last asked."""
    note = node.engine(kind).seen()[-1]
    headers: dict[str, list[str]] = {}
    for name, value in note["headers"]:
        headers.setdefault(name, []).append(value)
    return headers, base64.b64decode(note["body"])


@pytest.mark.parametrize("kind", ["scripted", "scripted-done", "scripted-usage"])
@pytest.mark.parametrize("size", [1, 5, 1000])
@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_comes_out_as_it_went_in(node: Node, kind: str, size: int, name: str) -> None:
    text = STREAMS[name] + DONE
    answer = got(node, kind, streamed(*pieces(text, size)), stream=True)
    assert (answer.status, answer.body, answer.broken) == (200, text, False)
    assert answer.headers["content-type"] == "text/event-stream"


@pytest.mark.parametrize("kind", ["scripted", "scripted-usage"])
@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n"])
def test_nothing_waits_for_what_comes_later(node: Node, kind: str, end: bytes) -> None:
    """Each event is at the client before the engine may write the next one."""
    gate = f"{kind}{len(end)}"

    async def scene() -> None:
        events = [b"data: %d%b" % (number, end) for number in range(5)]
        steps = [
            ("stream",),
            *(step for n, one in enumerate(events) for step in (("chunk", one), ("gate", f"{gate}-{n}"))),
        ]
        async with asyncio.timeout(10), connected(node) as client:
            await client.ask(chat(kind, script(*steps, ("end",)), stream=True))
            answer = await client.answer()
            for number, event in enumerate(events):
                await client.read(answer, number + 1)
                assert answer.pieces[number] == event
                await asyncio.to_thread(node.engine(kind).open, f"{gate}-{number}")
            await client.read(answer)
            assert (len(answer.pieces), answer.broken) == (5, False)

    asyncio.run(scene())


def test_gaps_in_time_stay_gaps(node: Node) -> None:
    waits = [step for number in range(5) for step in (("wait", 0.2), ("chunk", b"data: %d\n\n" % number))]
    answer = got(node, "scripted", script(("stream",), *waits, ("end",)), stream=True)
    gaps = [later - earlier for earlier, later in zip(answer.times, answer.times[1:], strict=False)]
    assert len(gaps) == 4
    assert min(gaps) >= 0.1


def test_a_large_answer_is_whole(node: Node) -> None:
    size = 20_000_000
    answer = got(node, "scripted", script(("big", size)))
    assert (len(answer.body), answer.broken) == (size, False)
    assert answer.body.strip(b"x") == b""


@pytest.mark.parametrize("status", [200, 400, 403, 404, 413, 422, 500, 502])
@pytest.mark.parametrize("stream", [True, False])
def test_an_engine_s_status_and_body_are_the_client_s(node: Node, status: int, stream: bool) -> None:
    text = json.dumps({"error": {"code": status, "message": "exceeds the available context size", "n_ctx": 4096}})
    answer = got(node, "scripted", script(("json", status, text)), stream=stream)
    assert (answer.status, answer.body.decode(), answer.broken) == (status, text, False)
    assert answer.headers["content-length"] == str(len(text))


def test_a_bad_client_does_not_make_a_backend_sick(node: Node) -> None:
    for _ in range(12):
        assert got(node, "scripted", script(("json", 400, '{"error":{}}'))).status == 400
    (backend,) = node.model("scripted")["backends"]
    assert (backend["status"], backend["respawns"]) == ("healthy", 0)


# What the engine is asked


RAW = (
    b' { "model":"%b" , "script": [["json", 200, "{}"]],\r\n "big": 123456789012345678901234567890, "huge": 1e400,\n'
    b'"text": "\xc3\xbf \\u00e9 \xf0\x9f\x98\x80", "twice": 1, "twice": 2, "none": null, "id_slot": 7 } '
)


def test_a_request_that_needs_no_edit_arrives_byte_for_byte(node: Node) -> None:
    raw = RAW % b"scripted-plain"
    assert asyncio.run(ask(node, raw)).status == 200
    headers, body = asked(node, "scripted-plain")
    assert body == raw
    assert headers["content-length"] == [str(len(raw))]


def test_the_slot_is_the_node_s_to_choose_and_nothing_else_is_edited(node: Node) -> None:
    assert asyncio.run(ask(node, RAW % b"scripted")).status == 200
    _, body = asked(node, "scripted")
    parsed = json.loads(body.decode("utf-8", "replace"))
    assert parsed["id_slot"] in (0, 1)
    assert body.count(b"id_slot") == 1
    for value in (b"123456789012345678901234567890", b"1e400", b'"\xc3\xbf \\u00e9 \xf0\x9f\x98\x80"', b"null"):
        assert value in body


def test_a_request_over_several_slots_is_pinned_to_none(node: Node) -> None:
    assert got(node, "scripted", script(("json", 200, "{}")), n=2, id_slot=1).status == 200
    assert "id_slot" not in json.loads(asked(node, "scripted")[1])


def test_two_requests_at_once_get_two_slots(node: Node) -> None:
    async def scene() -> None:
        steps = script(("gate", "two"), ("json", 200, "{}"))
        both = [asyncio.ensure_future(ask(node, chat("scripted", steps))) for _ in range(2)]
        await soon(lambda: node.slots("scripted") == ["running"] * 2, "both run")
        pins = {json.loads(base64.b64decode(one["body"]))["id_slot"] for one in node.engine("scripted").seen()[-2:]}
        assert pins == {0, 1}
        node.engine("scripted").open("two")
        assert {(await one).status for one in both} == {200}

    asyncio.run(scene())


USAGE = (
    b'data: {"choices":[],"usage":'
    b'{"prompt_tokens":9,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":4}}}'
)


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n"])
def test_usage_is_asked_for_and_kept_from_a_client_that_did_not(node: Node, end: bytes) -> None:
    word, done = EMOJI.strip() + end, DONE.strip() + end
    answer = got(
        node,
        "scripted-usage",
        streamed(word, USAGE + end + done),
        stream=True,
        headers=[("X-Request-Id", f"usage-{len(end)}")],
    )
    assert (answer.body, answer.broken) == (word + done, False)
    assert json.loads(asked(node, "scripted-usage")[1])["stream_options"] == {"include_usage": True}
    event = node.heard("request", request_id=f"usage-{len(end)}")
    assert (event["tokens_in"], event["tokens_cached"], event["tokens_out"]) == (9, 4, 3)


def test_usage_that_the_client_asked_for_is_the_client_s(node: Node) -> None:
    text = EMOJI + USAGE + b"\n\n" + DONE
    options = {"include_usage": True, "other": 1}
    answer = got(node, "scripted-usage", streamed(text), stream=True, stream_options=options)
    assert answer.body == text
    assert json.loads(asked(node, "scripted-usage")[1])["stream_options"] == options


def test_other_options_of_a_stream_stay(node: Node) -> None:
    got(node, "scripted-usage", streamed(DONE), stream=True, stream_options={"include_usage": False, "other": 1})
    assert json.loads(asked(node, "scripted-usage")[1])["stream_options"] == {"include_usage": True, "other": 1}


def test_a_stream_with_a_length_loses_it_with_the_chunk(node: Node) -> None:
    text = EMOJI + USAGE + b"\n\n" + DONE
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n" % len(text)
    answer = got(node, "scripted-usage", script(("raw", head + text)), stream=True)
    assert (answer.body, answer.broken) == (EMOJI + DONE, False)


SECRETS = [
    ("Authorization", "Bearer hush"),
    ("Cookie", "key=hush"),
    ("X-API-Key", "hush"),
    ("Api-Key", "hush"),
    ("Proxy-Authorization", "Basic hush"),
    ("X-Session-Id", "hush"),
    ("Referer", "http://hush"),
    ("X-Viiwork-Anything", "hush"),
    ("X-Scripted-Session", "hush"),
    ("Connection", "x-hop"),
    ("X-Hop", "hush"),
]


def test_credentials_do_not_reach_the_engine_and_its_own_headers_do_not_come_back(node: Node) -> None:
    head = (
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\nset-cookie: a=b\r\nserver: s\r\n"
        b"x-viiwork-node: liar\r\nx-gpu-backend: liar\r\naccess-control-allow-origin: *\r\nx-engine: yes\r\n\r\n{}"
    )
    headers = [*SECRETS, ("X-Request-Id", "mine-1"), ("X-Stays", "Jöte"), ("Accept-Encoding", "gzip")]
    answer = got(node, "scripted", script(("raw", head)), headers=headers)
    sent, _ = asked(node, "scripted")
    (session,) = sent["x-scripted-session"]
    assert "hush" not in str(sent)
    assert len(session) >= 16, "the session goes on as its keyed hash"
    assert "hush" not in session
    assert sent["x-request-id"] == ["mine-1"]
    assert sent["x-stays"] == ["J\u00c3\u00b6te"], "the same bytes, UTF-8, here read as Latin-1"
    assert "accept-encoding" not in sent
    assert answer.headers["x-request-id"] == "mine-1"
    assert answer.headers["x-viiwork-node"] == "one"
    assert answer.headers["x-viiwork-backend"] == answer.headers["x-gpu-backend"] == "scripted/0"
    assert answer.headers["x-engine"] == "yes"
    assert not answer.headers.keys() & {"set-cookie", "server", "access-control-allow-origin"}


def test_a_client_cannot_name_the_engine_s_session(node: Node) -> None:
    got(node, "scripted", None, headers=[("X-Scripted-Session", "somebody else's")])
    assert asked(node, "scripted")[0].get("x-scripted-session") != ["somebody else's"]


def test_a_request_gets_an_id_if_it_has_none(node: Node) -> None:
    ids = {got(node, "scripted", None).headers["x-request-id"] for _ in range(2)}
    assert len(ids) == 2
    assert asked(node, "scripted")[0]["x-request-id"][0] in ids


def test_an_answer_says_how_it_came_about(node: Node) -> None:
    got(node, "scripted", streamed(DONE), stream=True, headers=[("X-Request-Id", "logged")])
    event = node.heard("request", request_id="logged")
    assert (event["status"], event["backend"], event["queued_ms"]) == (200, "scripted/0", 0)
    slow = script(("wait", 0.3), ("stream",), ("chunk", DONE), ("end",))
    got(node, "scripted", slow, stream=True, headers=[("X-Request-Id", "slow")])
    event = node.heard("request", request_id="slow")
    assert event["total_ms"] >= event["ttft_ms"] >= 250

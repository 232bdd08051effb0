"""A conversation without a header stays where its cache is, whichever node it enters by."""

from __future__ import annotations

import json
import re
import time
from itertools import cycle
from typing import Any

import pytest
from mesh import FIRST, SECOND, Mesh
from nodes import MODEL, Message, Node, Reply, prose, until, user

TURNS = 6
WARM = 0.8


def turn(mesh: Mesh, messages: list[Message], text: str, entry: str) -> Reply:
    """One turn of a conversation, entered at that node; the answer is its next message."""
    messages.append(user(text))
    node = mesh.first if entry == FIRST else mesh.second
    # At another temperature, since two conversations that say the same are one.
    reply = node.chat(messages, temperature=1.0)
    messages.append({"role": "assistant", "content": reply.text})
    return reply


def heads(node: Node) -> set[str]:
    """The newest points of the conversations that a node publishes."""
    return {head["link"] for model in node.get("/v1/capacity").json["models"] for head in model.get("heads", ())}


def age(node: Node) -> float:
    """Seconds since a node asked the other for its report."""
    found = re.search(r"^viiwork_peer_report_age_seconds\{[^}]*\} (\S+)$", node.get("/metrics").body.decode(), re.M)
    return float(found[1]) if found else float("inf")


def published(mesh: Mesh, before: set[str]) -> set[str]:
    """Wait until a turn is published that was not `before`, and the other node has heard of it."""
    nodes = (mesh.first, mesh.second)
    now = until(lambda: (heads(mesh.first) | heads(mesh.second)) - before, "the turn is published")
    since = time.monotonic()
    for node in nodes:
        until(lambda node=node: age(node) < time.monotonic() - since, f"{node.name} has asked again")  # type: ignore[misc]  # mypy cannot type a lambda's default
    return before | now


def test_it_stays_with_its_cache_whichever_way_it_comes(mesh: Mesh) -> None:
    messages: list[Message] = []
    told = heads(mesh.first) | heads(mesh.second)
    first = turn(mesh, messages, prose(800, seed=70), FIRST)
    home = first.headers["x-viiwork-node"]
    for number, entry in zip(range(TURNS), cycle((SECOND, FIRST))):
        told = published(mesh, told)
        reply = turn(mesh, messages, prose(60, seed=71 + number), entry)
        assert reply.headers["x-viiwork-node"] == home
        assert reply.warmth > WARM


def said(reply: Reply, path: str, stream: bool) -> list[Any]:
    """What the client repeats of an answer: a message, or the items of a response."""
    assert reply.status == 200, reply.body
    lines = reply.body.decode().splitlines()
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")] if stream else []
    if path == "/v1/responses":
        return list((events[-1]["response"] if stream else reply.json)["output"])
    deltas = [event["delta"].get("text", "") for event in events if event["type"] == "content_block_delta"]
    content = [{"type": "text", "text": "".join(deltas)}] if stream else reply.json["content"]
    return [{"role": "assistant", "content": content}]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "history", "longest"),
    [("/v1/messages", "messages", "max_tokens"), ("/v1/responses", "input", "max_output_tokens")],
)
def test_so_it_does_in_the_other_interfaces(mesh: Mesh, path: str, history: str, longest: str, stream: bool) -> None:
    messages: list[Any] = []
    homes, known = set(), heads(mesh.first) | heads(mesh.second)
    for number, node in zip(range(4), cycle((mesh.first, mesh.second))):
        messages.append(user(prose(400 if number == 0 else 40, seed=len(path) * 100 + 10 * stream + number)))
        body = {"model": MODEL, history: messages, longest: 24, "temperature": 1.0, "stream": stream}
        reply = node.request("POST", path, json.dumps(body).encode())
        messages += said(reply, path, stream)
        homes.add(reply.headers["x-viiwork-node"])
        why = node.get(f"/v1/why/{reply.headers['x-request-id']}").json
        assert why["session"]["continues"] is (number > 0)
        assert number == 0 or why["cached_tokens"] > WARM * why["prompt_tokens"]
        known = published(mesh, known)
    assert len(homes) == 1


def test_two_with_one_opening_part_at_the_reply(mesh: Mesh) -> None:
    conversations: list[list[Message]] = [[], []]
    opening = prose(600, seed=80)
    for messages in conversations:
        turn(mesh, messages, opening, FIRST)
    for number in range(3):
        for at, messages in enumerate(conversations):
            reply = turn(mesh, messages, prose(40, seed=90 + 10 * at + number), FIRST)
            assert reply.warmth > WARM


def test_the_same_words_after_a_restart_of_the_entry(own_mesh: Mesh) -> None:
    """The entry node keeps no state: what the other publishes is enough."""
    messages: list[Message] = []
    opened = user(prose(500, seed=60))
    messages.append(opened)
    reply = own_mesh.first.chat(messages, host=SECOND, temperature=1.0)
    messages.append({"role": "assistant", "content": reply.text})
    messages.append(user(prose(30, seed=61)))

    def enters() -> bool:
        # The second node was never asked by this client, and knows the conversation by itself; the first one by the
        # second's report.
        answer = own_mesh.first.chat(messages)
        return answer.status == 200 and answer.headers["x-viiwork-node"] == SECOND and answer.warmth > WARM

    until(enters, "the conversation goes where it is held", 60)

"""Two nodes: what each tells of a request that one forwards to the other, and of the other."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from http_node import Node, ask, chat, connected, model, script, soon, started, streamed, until
from meshes import free_port, mesh_at
from prometheus_client.parser import text_string_to_metric_families

DONE = b"data: [DONE]\n\n"


def configuration(host: str, port: int, seeds: list[str], *models: dict[str, Any]) -> dict[str, Any]:
    return {"mesh": mesh_at(host, port, seeds), "routing": {"queue_timeout": "10s"}, "models": list(models)}


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Node, Node]]:
    """`front` has no model, `back` has one."""
    folder = tmp_path_factory.mktemp("figures")
    first, second = [(host, free_port(host)) for host in ("127.0.0.21", "127.0.0.22")]
    front = configuration(*first, [])
    back = configuration(*second, [f"{first[0]}:{first[1]}"], model("far"))
    with started("front", folder / "front", front) as one, started("back", folder / "back", back) as other:
        until(lambda: one.get("/v1/models")["data"], "the first knows the second's model")
        yield one, other


def series(node: Node, name: str) -> dict[tuple[str, ...], float]:
    """A series: the values of its labels, in the order of their names."""
    text = asyncio.run(ask(node, b"", path="/metrics", method="GET")).body.decode()
    return {
        tuple(value for _, value in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name
    }


def told(node: Node, rid: str) -> list[str]:
    events = node.get("/v1/activity")["events"]
    return [event["message"].split(" (")[0] for event in events if event.get("rid") == rid]


def test_each_counts_a_forward_as_what_it_was(nodes: tuple[Node, Node]) -> None:
    front, back = nodes
    answer = asyncio.run(ask(front, chat("far"), headers=[("X-Request-Id", "forward")]))
    assert answer.status == 200
    until(lambda: len(told(front, "forward")) == len(told(back, "forward")) == 2, "both tell of its end")
    assert told(front, "forward") == ["far → peer back", "far → peer back done"]
    assert told(back, "forward") == ["far → far/0", "far → far/0 done"]
    assert series(front, "viiwork_requests_total")["peer back", "far", "client", "200"] == 1
    assert series(back, "viiwork_requests_total")["far/0", "far", "member", "200"] == 1
    assert series(front, "viiwork_prompt_tokens_total") == {}, "they are counted where they were read"
    assert series(back, "viiwork_prompt_tokens_total") == {("far",): 5}
    assert series(front, "viiwork_ttft_seconds_count") == {("far", "peer"): 1}
    assert series(back, "viiwork_ttft_seconds_count") == {("far", "here"): 1}
    assert series(front, "viiwork_queue_wait_seconds_count") == {("far",): 1}
    assert series(back, "viiwork_queue_wait_seconds_count") == {}


def test_each_tells_what_it_knows_of_the_other(nodes: tuple[Node, Node]) -> None:
    front, back = nodes
    assert series(front, "viiwork_slots") == {}
    assert series(front, "viiwork_peer_slots") == {("far", "back"): 2}
    assert 0 <= series(front, "viiwork_peer_report_age_seconds")["back",] < 10
    until(lambda: ("front",) in series(back, "viiwork_peer_report_age_seconds"), "the second has asked the first")
    events = [event["message"] for event in front.get("/v1/activity")["events"] if event["type"] == "system"]
    assert events == ["front is up", "member back is here"]
    assert front.get("/v1/status")["addr"] == "127.0.0.21"


def test_a_peers_model_is_in_all_lists(nodes: tuple[Node, Node]) -> None:
    front, _ = nodes
    (plain,) = front.get("/v1/models")["data"]
    (info,) = front.get("/v1/model/info")["data"]
    (entry,) = front.get("/api.json")["viiwork"]["models"].values()
    assert (plain["id"], plain["owned_by"], plain["context_length"]) == ("far", "peer", 4096)
    assert (info["model_name"], info["model_info"]["max_input_tokens"]) == ("far", 4096)
    assert (entry["id"], entry["limit"]["context"]) == ("far", 4096)


def test_a_place_in_line_here_becomes_a_stream_from_there(nodes: tuple[Node, Node]) -> None:
    front, back = nodes

    async def scene() -> None:
        held = chat("far", script(("gate", "far"), ("json", 200, "{}")))
        running = [asyncio.ensure_future(ask(back, held)) for _ in range(2)]
        await soon(lambda: back.model("far")["busy"] == 2, "its slots are taken")
        async with asyncio.timeout(20), connected(front) as client:
            await client.ask(chat("far", streamed(DONE), stream=True), headers=[("X-Viiwork-Stream-Wait", "1")])
            answer = await client.read(await client.answer(), 1)
            assert (answer.status, answer.body) == (200, b": queued position=1\n\n")
            back.engine("far").open("far")
            await client.read(answer)
            assert answer.body.endswith(DONE)
            assert not answer.broken
        assert [json.loads((await one).body) for one in running] == [{}, {}]

    asyncio.run(scene())

"""What the node tells of itself: metrics, status, and the lists of its models."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest
from http_node import Answer, Node, ask, chat, connected, script, soon, started, streamed
from prometheus_client.parser import text_string_to_metric_families

Labels = dict[str, str]


def got(node: Node, path: str, **headers: str) -> Answer:
    return asyncio.run(ask(node, b"", path=path, method="GET", headers=list(headers.items())))


def scraped(node: Node) -> list[tuple[str, Labels, float]]:
    answer = got(node, "/metrics")
    assert (answer.status, answer.headers["content-type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    families = text_string_to_metric_families(answer.body.decode())
    return [(sample.name, sample.labels, sample.value) for family in families for sample in family.samples]


def value(node: Node, name: str, **labels: str) -> float:
    """The sum of a series where its labels are these."""
    return sum(number for found, known, number in scraped(node) if found == name and labels.items() <= known.items())


def kinds(node: Node) -> list[str]:
    """The node's models."""
    return sorted(one["name"] for one in node.get("/v1/status")["models"])


def settled(node: Node, name: str, expected: float, **labels: str) -> None:
    """A request is counted after its client has its answer."""
    asyncio.run(soon(lambda: value(node, name, **labels) == expected, f"{name} is {expected}"))


def test_a_request_is_counted_with_its_tokens_and_times(node: Node) -> None:
    labels = {"model": "scripted-plain"}
    names = [f"viiwork_{kind}_tokens_total" for kind in ("prompt", "cached", "completion")]
    before = [value(node, name, **labels) for name in names]
    done = {"status": "200", "backend": "scripted-plain/0", "origin": "client", **labels}
    count = value(node, "viiwork_requests_total", **done)
    waits, firsts = (value(node, f"viiwork_{kind}_seconds_count", **labels) for kind in ("queue_wait", "ttft"))
    status = node.model("scripted-plain")
    assert asyncio.run(ask(node, chat("scripted-plain"))).status == 200
    settled(node, "viiwork_requests_total", count + 1, **done)
    assert [value(node, name, **labels) for name in names] == [before[0] + 5, before[1] + 2, before[2] + 1]
    assert value(node, "viiwork_queue_wait_seconds_count", **labels) == waits + 1
    assert value(node, "viiwork_ttft_seconds_count", place="here", **labels) == firsts + 1
    now = node.model("scripted-plain")
    assert now["requests_total"] == status["requests_total"] + 1
    assert now["tokens_total"] == status.get("tokens_total", 0) + 6


def test_a_client_that_left_is_counted_as_such(node: Node) -> None:
    """An outage must not look like success."""
    labels = {"model": "scripted", "status": "499", "backend": "scripted/0"}
    before = value(node, "viiwork_requests_total", **labels)

    async def scene() -> None:
        async with asyncio.timeout(10), connected(node) as client:
            await client.ask(chat("scripted", script(("hold",)), stream=True))
            await soon(lambda: node.model("scripted")["busy"] == 1, "it runs")
            client.leave()

    asyncio.run(scene())
    settled(node, "viiwork_requests_total", before + 1, **labels)


def test_a_cut_answer_is_counted_as_a_failure(node: Node) -> None:
    labels = {"model": "scripted", "status": "502"}
    before = value(node, "viiwork_requests_total", **labels)
    asyncio.run(ask(node, chat("scripted", streamed(b"data: a\n\n", end=False), stream=True)))
    settled(node, "viiwork_requests_total", before + 1, **labels)


def test_names_that_clients_make_up_are_no_series(node: Node) -> None:
    before = value(node, "viiwork_requests_total", model="", status="404")
    for number in range(3):
        assert asyncio.run(ask(node, chat(f"made-up-{number}"))).status == 404
    settled(node, "viiwork_requests_total", before + 3, model="", status="404")
    assert not [labels for _, labels, _ in scraped(node) if "made-up" in labels.get("model", "")]


def test_slots_queue_and_states_are_as_they_are_now(node: Node) -> None:
    async def scene() -> None:
        body = chat("scripted", script(("gate", "figures"), ("json", 200, "{}")))
        asked = [asyncio.ensure_future(ask(node, body)) for _ in range(3)]
        await soon(lambda: node.model("scripted")["queued"] == 1, "one waits")
        seen = await asyncio.to_thread(scraped, node)
        found = {name: number for name, labels, number in seen if labels == {"model": "scripted"}}
        assert (found["viiwork_slots"], found["viiwork_slots_busy"], found["viiwork_queue_length"]) == (2, 2, 1)
        node.engine("scripted").open("figures")
        await asyncio.gather(*asked)

    asyncio.run(scene())
    states = [labels for name, labels, number in scraped(node) if name == "viiwork_backend_state" and number]
    assert sorted(one["backend"] for one in states) == sorted(f"{kind}/0" for kind in kinds(node))
    assert {one["state"] for one in states} == {"healthy"}


def test_the_lists_of_models_agree(node: Node) -> None:
    plain = node.get("/v1/models")["data"]
    info = node.get("/v1/model/info")["data"]
    answer = got(node, "/api.json")
    provider = json.loads(answer.body)["viiwork"]
    assert [one["id"] for one in plain] == kinds(node)
    assert [one["model_name"] for one in info] == [one["id"] for one in plain] == list(provider["models"])
    for one, other, third in zip(plain, info, provider["models"].values(), strict=True):
        assert one["owned_by"] == "local"
        assert 0 < one["created"] <= time.time()
        assert node.get(f"/v1/models/{one['id']}") == one
        assert one["context_length"] == one["max_model_len"] == 4096
        assert other["model_info"]["max_input_tokens"] == third["limit"]["context"] == 4096


@pytest.mark.parametrize(
    ("host", "base"),
    [
        ("attic.example:8086", "http://attic.example:8086/v1"),
        ("[::1]:8086", "http://[::1]:8086/v1"),
        ('"><script>', None),
        ("a b", None),
        ("user@elsewhere", None),
    ],
)
def test_opencode_is_sent_where_it_came_from(node: Node, host: str, base: str | None) -> None:
    async def scene() -> Any:
        async with asyncio.timeout(10), connected(node) as client:
            await client.send(f"GET /api.json HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
            return await client.read(await client.answer("GET"))

    answer = asyncio.run(scene())
    assert answer.status == 200
    assert json.loads(answer.body)["viiwork"]["api"] == (base or f"http://127.0.0.1:{node.port}/v1")


def test_the_list_for_opencode_can_be_named_and_left_out(tmp_path: Path) -> None:
    catalog = {"provider_id": "house", "provider_name": "The house", "base_url": "https://llm.example.org/v1"}
    for number, (wanted, status) in enumerate(((catalog, 200), ({"enabled": False, "provider_id": "a b"}, 404))):
        config = {"api": {"port": 0, "catalog": wanted}, "models": []}
        with started("named", tmp_path / str(number), config) as node:
            answer = got(node, "/api.json")
            assert answer.status == status
            if status == 200:
                provider = json.loads(answer.body)["house"]
                told = (provider["id"], provider["name"], provider["api"])
                assert told == ("house", "The house", "https://llm.example.org/v1")


def test_the_status_tells_of_the_machine_and_of_each_backend(node: Node) -> None:
    status = node.get("/v1/status")
    assert 0 < status["host_mem_used_mb"] < status["host_mem_total_mb"]
    assert status["uptime_s"] >= 0
    assert "addr" not in status, "it has no address in a mesh"
    (backend,) = node.model("scripted")["backends"]
    assert backend["rss_mb"] > 0
    assert backend["uptime_s"] >= 0
    assert (backend["busy"], backend["slots"]) == (0, 2)
    assert "gpus" not in backend


@pytest.mark.parametrize("path", ["/v1/models", "/v1/status", "/health", "/metrics", "/v1/activity", "/nowhere"])
def test_every_page_names_its_request(node: Node, path: str) -> None:
    assert got(node, path, **{"X-Request-Id": "mine"}).headers["x-request-id"] == "mine"
    assert got(node, path).headers["x-request-id"].startswith("req-")

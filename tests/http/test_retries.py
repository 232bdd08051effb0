"""What fails before its first byte goes elsewhere; what refuses everywhere is told as what it is."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import psutil
import pytest
from http_node import Answer, EngineEnd, Node, ask, chat, model, script, started, streamed, until


@pytest.fixture(scope="module")
def twin_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A node with two backends of one model, and one model with a single one."""
    config = {
        "routing": {"queue_timeout": "1s"},
        "health": {"interval": "0.5s"},
        "models": [model("twins", gpus=[0, 1], parallel=2), model("alone", parallel=1)],
    }
    with started("two", tmp_path_factory.mktemp("node") / "two", config) as node:
        yield node


@pytest.fixture
def node(twin_node: Node) -> Node:
    for name in ("twins", "alone"):
        until(lambda name=name: twin_node.idle(name), f"{name} is idle")  # type: ignore[misc]  # mypy cannot type a lambda's default
        for engine in engines(twin_node, name):
            engine.refuse()
    return twin_node


def engines(node: Node, name: str) -> list[EngineEnd]:
    return [node.engine(name, index) for index in range(len(node.model(name)["backends"]))]


def got(node: Node, name: str, rid: str = "r", **more: object) -> Answer:
    return asyncio.run(ask(node, chat(name, **more), headers=[("X-Request-Id", rid)]))  # type: ignore[arg-type]


def asked(engine: EngineEnd, rid: str) -> int:
    """How often an engine saw a request."""
    return sum(["x-request-id", rid] in one["headers"] for one in engine.seen())


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("first", [0, 1])
def test_a_backend_that_refuses_once_costs_one_retry(node: Node, status: int, first: int) -> None:
    rid = f"once-{status}-{first}"
    both = engines(node, "twins")
    both[first].refuse(*[status] * 10)
    for number in range(4):
        answer = got(node, "twins", f"{rid}-{number}")
        assert answer.status == 200
        assert answer.headers["x-viiwork-backend"] == f"twins/{1 - first}"
        assert asked(both[1 - first], f"{rid}-{number}") == 1
        assert asked(both[first], f"{rid}-{number}") <= 1
        node.heard("request", request_id=f"{rid}-{number}", status=200, backend=f"twins/{1 - first}")


def test_a_refusal_everywhere_is_no_failure(node: Node) -> None:
    for engine in engines(node, "twins"):
        engine.refuse(503, 429, 503, 429)
    answer = got(node, "twins", "all")
    assert (answer.status, answer.headers["retry-after"]) == (503, "2")
    assert answer.error == {
        "message": "no route has capacity",
        "type": "unavailable",
        "code": "no_capacity",
        "src": "viiwork",
    }
    assert [asked(engine, "all") for engine in engines(node, "twins")] in ([2, 1], [1, 2]), "one retry and a last try"


def test_a_backend_that_refuses_once_may_take_it_the_next_time(node: Node) -> None:
    engines(node, "alone")[0].refuse(503)
    assert got(node, "alone", "again").status == 200
    assert asked(engines(node, "alone")[0], "again") == 2


def test_a_refused_client_finds_a_free_node_afterwards(node: Node) -> None:
    engines(node, "alone")[0].refuse(503, 503)
    assert got(node, "alone", "twice").status == 503
    until(lambda: node.idle("alone"), "the slot is free again")
    assert got(node, "alone", "thrice").status == 200


def test_what_closes_without_an_answer_is_a_failure_and_tried_elsewhere(node: Node) -> None:
    answer = got(node, "twins", "closed", steps=script(("cut",)))
    assert answer.status == 502
    assert answer.error["message"].startswith("no route could serve the request: the backend did not answer")
    # Three tries, and each once more where the connection was one that had been kept.
    assert 3 <= sum(asked(engine, "closed") for engine in engines(node, "twins")) <= 6
    assert {backend["status"] for backend in node.model("twins")["backends"]} == {"healthy"}


def test_nothing_is_tried_again_after_the_first_byte(node: Node) -> None:
    answer = got(node, "twins", "byte", steps=streamed(b"data: a\n\n", end=False), stream=True)
    assert (answer.status, answer.body, answer.broken) == (200, b"data: a\n\n", True)
    assert sum(asked(engine, "byte") for engine in engines(node, "twins")) == 1
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n"
    answer = got(node, "twins", "head", steps=script(("raw", head), ("cut",)))
    assert (answer.status, answer.broken) == (200, True)
    assert sum(asked(engine, "head") for engine in engines(node, "twins")) == 1


def test_what_the_engine_says_is_wrong_is_not_asked_again(node: Node) -> None:
    for status in (400, 404, 422, 500):
        answer = got(node, "twins", f"wrong-{status}", steps=script(("json", status, '{"error":"no"}')))
        assert (answer.status, answer.body) == (status, b'{"error":"no"}')
        assert sum(asked(engine, f"wrong-{status}") for engine in engines(node, "twins")) == 1


def test_an_engine_s_words_about_its_key_or_place_are_not_the_client_s(node: Node) -> None:
    answer = got(node, "alone", "key", steps=script(("json", 401, '{"error":"invalid key hush"}')))
    assert answer.status == 502
    assert b"hush" not in answer.body
    moved = b"HTTP/1.1 307 X\r\nlocation: http://127.0.0.1:1/hush\r\ncontent-length: 0\r\n\r\n"
    answer = got(node, "alone", "moved", steps=script(("raw", moved)))
    assert answer.status == 502
    assert "location" not in answer.headers
    assert b"hush" not in answer.body


def test_a_dead_engine_s_requests_go_to_the_living_one(node: Node) -> None:
    dead = psutil.Process(node.model("twins")["backends"][0]["pid"])
    dead.kill()
    for number in range(10):
        answer = got(node, "twins", f"dead-{number}")
        assert (answer.status, answer.headers["x-viiwork-backend"]) == (200, "twins/1")
    until(lambda: node.model("twins")["backends"][0]["status"] == "healthy", "it is started again")
    assert node.model("twins")["backends"][0]["pid"] != dead.pid


def test_a_dead_engine_that_comes_back_serves_whoever_waited(tmp_path_factory: pytest.TempPathFactory) -> None:
    config = {"routing": {"queue_timeout": "15s"}, "models": [model("only")]}
    with started("three", tmp_path_factory.mktemp("node") / "three", config) as node:
        psutil.Process(node.model("only")["backends"][0]["pid"]).kill()
        assert got(node, "only").status == 200


def test_one_that_waited_in_vain_after_a_failure_hears_of_the_failure(node: Node) -> None:
    """The slot of a backend that failed stays closed while the engine says that it is busy."""
    (engine,) = engines(node, "alone")
    engine.tell({"slots": 1, "busy": 1, "each": [{"id": 0, "busy": True}]})
    try:
        answer = got(node, "alone", "vain", steps=script(("cut",)))
    finally:
        engine.tell(None)
    if answer.status == 429:
        pytest.fail("it was told that there was no room")
    assert answer.status == 502
    assert "the backend did not answer" in answer.error["message"]

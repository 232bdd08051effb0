"""GET /v1/mesh/greeting, whoever asks."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from structlog.testing import capture_logs

from viiwork_core.mesh.greeting import Caller, Strangers
from viiwork_core.web.claims import Claims
from viiwork_core.web.greetings import Greetings

OPEN = Claims(None, lambda _: (), node="me", mode="open")


def greeted(claims: Claims, *queries: str, client: str = "127.0.0.2") -> list[tuple[int, Any]]:
    sent: list[dict[str, Any]] = []
    greetings = Greetings(claims, node="me", node_id="run-1", age_s=lambda: 12.3456)

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    async def run() -> None:
        for query in queries:
            scope = {"method": "GET", "client": (client, 1), "headers": [], "query_string": query.encode()}
            await greetings(scope, send)  # type: ignore[arg-type]  # a plain dictionary is an ASGI message

    asyncio.run(run())
    return [(start["status"], json.loads(end["body"])) for start, end in zip(sent[::2], sent[1::2], strict=True)]


def query(mode: str = "open", name: str = "default") -> str:
    return Caller(node="other", mode=mode, name=name).target().partition("?")[2]


def test_who_fits_is_told_so_and_the_log_says_nothing() -> None:
    with capture_logs() as logs:
        assert greeted(OPEN, query()) == [(200, {"node": "me", "node_id": "run-1", "age_s": 12.346, "fits": ""})]
    assert logs == []


def test_who_does_not_fit_is_one_line_until_the_reason_changes() -> None:
    with capture_logs() as logs:
        answers = greeted(OPEN, query("secured"), query("secured"), query(name="m2"), query(), query("secured"))
    assert [answer["fits"] for _, answer in answers] == [
        "mesh mode mismatch",
        "mesh mode mismatch",
        "other mesh name",
        "",
        "mesh mode mismatch",
    ]
    assert [(log["event"], log["address"], log["node"]) for log in logs] == [
        (event, "127.0.0.2", "other") for event in ("mesh mode mismatch", "other mesh name", "mesh mode mismatch")
    ]


@pytest.mark.parametrize("text", ["", "mode=open", "mode=shut&name=a&node=b", "mode=open&name=%0a&node=b", "x" * 5000])
def test_what_makes_no_sense_is_refused_and_not_logged(text: str) -> None:
    with capture_logs() as logs:
        ((status, _),) = greeted(OPEN, text)
    assert (status, logs) == (400, [])


def test_a_node_in_no_mesh_has_nothing_to_say() -> None:
    assert greeted(Claims(None, lambda _: ()), query())[0][0] == 404


def test_a_flood_of_addresses_is_not_kept() -> None:
    strangers = Strangers()
    with capture_logs() as logs:
        for number in range(1000):
            strangers.saw(f"10.0.{number // 256}.{number % 256}", "other secret")
    assert len(logs) == 1000
    assert len(strangers._told) == 256

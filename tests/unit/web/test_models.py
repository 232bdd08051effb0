"""GET /v1/models, all of them and one."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from viiwork_core.testing.fake_clock import FakeClock
from viiwork_core.web.catalog import ModelRecord
from viiwork_core.web.openai import read_endpoints

RECORDS = [ModelRecord("org/qwen/7b", "local", 4096), ModelRecord("plain", "peer", None)]


def got(path: str, records: list[ModelRecord] | None = None) -> tuple[int, Any]:
    """Status and body."""
    surface: Any = SimpleNamespace(
        models=lambda: RECORDS if records is None else records,
        inference=SimpleNamespace(clock=FakeClock()),
        access=None,
        prompts=None,
    )

    async def ask() -> tuple[int, Any]:
        answer = await read_endpoints(surface).test_client().get(path)
        return answer.status_code, await answer.get_json()

    return asyncio.run(ask())


@pytest.mark.parametrize(("path", "place"), [("org/qwen/7b", 0), ("org%2Fqwen%2F7b", 0), ("plain", 1)])
def test_one_model_is_the_list_s_entry(path: str, place: int) -> None:
    _, listed = got("/v1/models")
    status, entry = got(f"/v1/models/{path}")
    assert status == 200
    assert entry == listed["data"][place]
    assert entry["id"] == RECORDS[place].id


def test_every_entry_says_when_the_node_opened() -> None:
    _, listed = got("/v1/models")
    assert [one["created"] for one in listed["data"]] == [int(FakeClock().wall())] * 2


def test_one_that_nobody_serves_is_told_with_those_that_are() -> None:
    status, body = got("/v1/models/org/qwen")
    assert status == 404
    assert (body["error"]["type"], body["error"]["code"], body["error"]["src"]) == ("not_found", "not_found", "viiwork")
    assert body["error"]["message"] == ('model "org/qwen" is not served by any node; known models: org/qwen/7b, plain')


def test_where_there_are_none_that_is_said() -> None:
    assert got("/v1/models/m", [])[1]["error"]["message"].endswith("known models: none")

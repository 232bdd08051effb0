"""The dashboards as files: what a browser is sent, may keep, and is forbidden."""

from __future__ import annotations

import asyncio
import json
import re

import pytest
from http_node import Answer, Node, ask, connected, until

from viiwork_core.web.pages import POLICY, STATIC, Files

PAGES = ("/", "/mesh", "/chat", "/why", "/why/req-1", "/why/a/b%3Cc%3E")
TEMPLATES = STATIC.parent / "templates"
PAGE = 4096


def got(node: Node, path: str, method: str = "GET") -> Answer:
    return asyncio.run(ask(node, b"", path=path, method=method))


def files_of(node: Node) -> str:
    """The path under which the files lie."""
    found = re.search(r"/static/[0-9a-f]{16}", got(node, "/").body.decode())
    assert found is not None
    return found[0]


@pytest.mark.parametrize("path", PAGES)
def test_a_page_is_there_and_forbids_what_it_does_not_need(node: Node, path: str) -> None:
    answer = got(node, path)
    assert (answer.status, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert answer.headers["cache-control"] == "no-cache"
    assert answer.headers["content-security-policy"] == POLICY
    assert POLICY.startswith("default-src 'self'; ")
    assert "unsafe" not in POLICY
    assert answer.headers["x-content-type-options"] == "nosniff"
    text = answer.body.decode()
    assert len(text) < PAGE
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style| style=| on\w+=|https?://", text)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
def test_a_page_is_only_read(node: Node, method: str) -> None:
    assert got(node, "/", method).status == 405
    assert (got(node, "/", "HEAD").status, got(node, "/", "HEAD").body) == (200, b"")


def test_files_may_be_kept_for_ever(node: Node) -> None:
    under = files_of(node)
    assert under == Files.read().path
    kinds = {"js": "text/javascript; charset=utf-8", "css": "text/css; charset=utf-8", "svg": "image/svg+xml"}
    for name, content in Files.read().contents.items():
        answer = got(node, f"{under}/{name}")
        assert (answer.status, answer.body) == (200, content)
        assert answer.headers["content-type"].startswith(kinds[name.rpartition(".")[2]])
        assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"


@pytest.mark.parametrize("name", ["nothing.js", "../pages.py", "..%2Fpages.py", "%2e%2e/pages.py", "", "style.css/x"])
def test_nothing_else_is_a_file(node: Node, name: str) -> None:
    assert got(node, f"{files_of(node)}/{name}").error["code"] == "not_found"
    assert got(node, f"/static/0000000000000000/{name}").status == 404


def test_the_files_ask_for_nothing_that_is_elsewhere() -> None:
    """All that a file names is beside it, so that a node without any other network serves whole pages."""
    for path in (*STATIC.iterdir(), *TEMPLATES.iterdir()):
        text = path.read_text()
        # The names of vocabularies, and what leads to another node's page when somebody follows it.
        known = text.replace("http://www.w3.org/2000/svg", "").replace("`http://${one.addr}/`", "")
        assert not re.search(r"[a-z]+://(?!.*\\d)", known), path.name
        for name in re.findall(r'from "\./([^"]+)"', text):
            assert (STATIC / name).is_file(), path.name
        assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\b|new Function", text), (
            path.name
        )


def test_another_content_lies_under_another_path(tmp_path_factory: pytest.TempPathFactory) -> None:
    one, other = (tmp_path_factory.mktemp("files") for _ in range(2))
    (one / "a.js").write_text("1")
    (other / "a.js").write_text("2")
    assert Files.read(one).path != Files.read(other).path
    assert Files.read(one).path == Files.read(one).path


def test_the_last_hour_has_samples(node: Node) -> None:
    told = until(lambda: _hour(node), "a first sample")
    assert (told["interval_s"], told["max_samples"]) == (10.0, 360)
    last = told["samples"][-1]
    assert (last["slots"], last["busy"], last["queued"]) == (10, 0, 0)
    assert last["host_mem_used_mb"] > 0
    assert abs(last["t"] - told["samples"][0]["t"]) <= 3600


def _hour(node: Node) -> dict[str, list[dict[str, int]]] | None:
    told: dict[str, list[dict[str, int]]] = node.get("/v1/status/history")
    return told if told["samples"] and told["samples"][-1]["slots"] == 10 else None


def test_this_node_s_stream_begins_with_its_status(node: Node) -> None:
    async def scene() -> None:
        async with asyncio.timeout(20), connected(node) as client:
            await client.ask(b"", path="/v1/status/stream", method="GET")
            answer = await client.answer("GET")
            assert (answer.status, answer.headers["content-type"]) == (200, "text/event-stream")
            while b"event: sample" not in answer.body:
                await client.read(answer, len(answer.pieces) + 1)
            _, first, *_ = answer.body.decode().split("\n\n")
            name, data = first.split("\n")
            status = json.loads(data.removeprefix("data: "))
            assert (name, status["node"]) == ("event: status", "one")
            assert status["uptime_s"] % 60 == 0
            assert status["models"][0]["backends"][0]["slot_states"] == ["free", "free"]
            assert "rss_mb" in node.get("/v1/status")["models"][0]["backends"][0]

    asyncio.run(scene())
    assert got(node, "/v1/status/stream", "POST").status == 405

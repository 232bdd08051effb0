"""What was asked, on the page of a node that keeps it: told, read when wanted, and shown as text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from http_node import CHAT, Node, chat, fetch, model, started, until
from looking import SHOTS, Screen

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

MARKUP = "<img/src=x/onerror=window.taken=1>"
HAS = "([where, text]) => document.querySelector(where)?.innerText.includes(text)"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    config = {"models": [model("m")], "activity": {"prompts": "full"}}
    with started("diary", tmp_path_factory.mktemp("diary") / "node", config) as made:
        yield made


@pytest.fixture
def screen(browser: Any, node: Node) -> Iterator[Screen]:
    with Screen.open(browser, f"http://{node.host}:{node.port}", SHOTS) as made:
        yield made
        made.check()


@pytest.mark.parametrize("path", ["/", "/mesh", "/chat", "/why"])
def test_each_page_says_that_texts_are_kept(screen: Screen, path: str) -> None:
    screen.go(path)
    assert "keeps the texts of requests and answers" in screen.text("#kept")


def test_what_was_asked_is_read_when_wanted_and_is_text(screen: Screen, node: Node) -> None:
    screen.go("/")
    screen.page.get_by_role("button", name="Read", exact=True).click()
    screen.until(HAS, "#asked", "Nothing has been kept yet.")
    body = chat("m").replace(b'"hello"', f'"{MARKUP}"'.encode())
    answer = fetch(node.host, node.port, CHAT, "POST", body.decode())
    assert answer["choices"][0]["message"]["content"] == "fine"
    until(lambda: node.get("/v1/prompts")["prompts"], "it is kept")
    screen.page.get_by_role("button", name="Read again").click()
    screen.until(HAS, "#asked", MARKUP)
    screen.until(HAS, "#asked", "fine")
    assert screen.page.evaluate("window.taken") is None
    screen.shoot("prompts")

"""Logging in with an API key, in a browser: form, cookie, streams, logging out, and a login that ends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from http_node import Node, model, started
from looking import PHONE, SHOTS, Screen

from viiwork_core.security.keys import digest_of, hash_text, new_token

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

TOKEN = new_token()
KEYS = [{"name": "alice", "hash": hash_text(digest_of(TOKEN))}]
HAS = "([where, text]) => document.querySelector(where)?.innerText.includes(text)"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    config = {"api": {"port": 0, "keys": KEYS}, "health": {"interval": "0.5s"}, "models": [model("m", "fake")]}
    with started("vault", tmp_path_factory.mktemp("vault") / "node", config, healthy=False) as made:
        yield made


@pytest.fixture
def screen(browser: Any, node: Node) -> Iterator[Screen]:
    with Screen.open(browser, f"http://{node.host}:{node.port}", SHOTS) as made:
        yield made


def log_in(screen: Screen, key: str = TOKEN) -> None:
    screen.page.get_by_label("API key").fill(key)
    screen.page.get_by_role("button", name="Log in").click()


def cookies(screen: Screen) -> list[dict[str, Any]]:
    return list(screen.page.context.cookies())


def test_a_key_opens_the_page_that_was_wanted(screen: Screen) -> None:
    page = screen.go("/mesh?filter=vau")
    assert page.url == f"{screen.base}/login?next=/mesh%3Ffilter%3Dvau"
    assert page.evaluate("document.activeElement.id") == "key"
    screen.shoot("login")
    log_in(screen)
    page.wait_for_url(f"{screen.base}/mesh?filter=vau")
    screen.until(HAS, "#live", "live")
    screen.until(HAS, "#nodes", "vault")
    assert page.get_by_label("Filter").input_value() == "vau"
    (cookie,) = cookies(screen)
    assert (cookie["name"], cookie["httpOnly"], cookie["sameSite"]) == ("viiwork-vault", True, "Strict")
    assert page.evaluate("document.cookie") == ""
    assert TOKEN not in page.url + page.content() + str(cookie)
    screen.check()


def test_a_chat_works_with_the_cookie(screen: Screen) -> None:
    page = screen.go("/chat")
    log_in(screen)
    page.wait_for_url(f"{screen.base}/chat")
    screen.until("() => document.querySelector('#model').value === 'm'")
    page.get_by_label("Your message").fill("hello")
    page.get_by_role("button", name="Send").click()
    screen.until("() => (document.querySelector('#talk').innerText.match(/\\S+/g) ?? []).length > 5")
    screen.check()


def test_a_wrong_key_is_told_and_forgotten(screen: Screen) -> None:
    page = screen.go("/")
    log_in(screen, "vwk_wrong")
    screen.until(HAS, "[role=alert]", "not a key of this node")
    assert page.get_by_label("API key").input_value() == ""
    assert page.evaluate("document.querySelector('#key').getAttribute('aria-invalid')") == "true"
    assert cookies(screen) == []
    screen.shoot("login-refused")
    log_in(screen)
    page.wait_for_url(f"{screen.base}/")
    # The browser itself says on its console that an answer was 401.
    screen.check(lambda said: "401" in said)


def test_a_chat_whose_login_has_ended_asks_for_another(screen: Screen) -> None:
    page = screen.go("/chat")
    log_in(screen)
    page.wait_for_url(f"{screen.base}/chat")
    screen.until("() => document.querySelector('#model').value === 'm'")
    page.context.clear_cookies()
    page.get_by_label("Model").focus()
    page.wait_for_url(f"{screen.base}/login?next=%2Fchat")
    screen.check(lambda said: "401" in said)


def test_logging_out_closes_the_pages(screen: Screen) -> None:
    page = screen.go("/why")
    log_in(screen)
    page.wait_for_url(f"{screen.base}/why")
    page.get_by_role("button", name="Log out").click()
    page.wait_for_url(f"{screen.base}/login")
    assert cookies(screen) == []
    screen.go("/mesh")
    assert page.url == f"{screen.base}/login?next=/mesh"
    screen.check()


def test_a_page_whose_login_has_ended_asks_for_another(browser: Any, tmp_path: Path) -> None:
    config = {"api": {"port": 0, "keys": KEYS}}
    with started("vault", tmp_path / "node", config, healthy=False) as node:
        base, port = f"http://{node.host}:{node.port}", node.port
        with Screen.open(browser, base, SHOTS) as screen:
            page = screen.go("/mesh")
            log_in(screen)
            page.wait_for_url(f"{base}/mesh")
            screen.until(HAS, "#live", "live")
            node.process.terminate()
            node.process.wait(20)
            with started("vault", tmp_path / "node", {"api": {"port": port, "keys": KEYS}}, healthy=False):
                page.wait_for_url(f"{base}/login?next=%2Fmesh")
            screen.check(lambda said: "401" in said or "ERR_" in said)


def test_the_form_is_usable_on_a_phone_by_keys_and_in_the_dark(browser: Any, node: Node) -> None:
    base = f"http://{node.host}:{node.port}"
    with Screen.open(browser, base, SHOTS, viewport=PHONE, color_scheme="dark", java_script_enabled=False) as small:
        page = small.go("/login")
        small.shoot("login-phone-dark")
        page.get_by_label("API key").fill(TOKEN)
        page.keyboard.press("Enter")
        page.wait_for_url(f"{base}/")
        small.check()
    with Screen.open(browser, base, SHOTS, viewport=PHONE, color_scheme="dark") as small:
        small.go("/login")
        assert small.page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
        assert small.page.locator("h1").count() == 1
        dark = small.page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert dark == "rgb(21, 24, 27)"
        small.check()


def test_a_form_of_another_page_logs_nobody_in(browser: Any, node: Node, tmp_path: Path) -> None:
    """A page elsewhere on this machine sends the form: the browser names it, and the node refuses."""
    with started("other", tmp_path / "other", {}, healthy=False) as other:
        base = f"http://{node.host}:{node.port}"
        with Screen.open(browser, f"http://{other.host}:{other.port}", SHOTS) as screen:
            page = screen.go("/health")
            page.evaluate(
                """([to, key]) => { const form = document.createElement('form'); form.method = 'post';
                form.action = to; const field = document.createElement('input'); field.name = 'key';
                field.value = key; form.append(field); document.body.append(form); form.submit(); }""",
                [f"{base}/login", TOKEN],
            )
            page.wait_for_url(f"{base}/login")
            assert "another page" in page.locator("[role=alert]").inner_text()
            assert cookies(screen) == []

"""The dashboards in a browser: what they show is so, changes as it changes, and does no harm."""

from __future__ import annotations

import asyncio
import re
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from http_node import Node, ask, chat, model, script, started, until
from looking import PHONE, SHOTS, Screen
from scene import MARKUP, SHARED, SMALL, Scene, free_port

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

PAGES = ("/", "/mesh", "/chat", "/why")
DASH = "\N{EN DASH}"
IN_MODELS = """([name, text]) => [...document.querySelectorAll('.model')].some(
    (one) => one.innerText.includes(name) && one.innerText.includes(text))"""
HAS = "([where, text]) => document.querySelector(where)?.innerText.includes(text)"
HAS_NOT = "([where, text]) => !document.querySelector(where).innerText.includes(text)"


def test_this_node_shows_figures_that_change(screen: Screen, scene: Scene, attic: Node) -> None:
    screen.go("/")
    screen.until(HAS, "#live", "live")
    screen.until(HAS, "h1", "attic")
    assert re.search(r"viiwork [0-9.]+ · up .* · secured mesh with 1 other node · memory", screen.text("#head"))
    screen.until(IN_MODELS, SHARED, "0 of 2 busy")
    assert "2 free" in screen.text("#models")
    with scene.under_way(MARKUP, "here", at=attic, entry=attic):
        screen.until(IN_MODELS, MARKUP, "1 of 2 busy")
        screen.until(HAS, "#flights", "here-0")
        assert "answering" in screen.text("#flights")
        assert screen.page.locator(".slots [data-state=running]").count() == 1
        first = screen.text("#flights tbody td.n >> nth=1")
        screen.until("([text]) => document.querySelectorAll('#flights tbody td.n')[1].innerText !== text", first)
    screen.until(IN_MODELS, MARKUP, "0 of 2 busy")
    screen.until(HAS, "#activity", "done (")
    screen.until(HAS, "#flights", "No request is under way.")
    screen.shoot("node-idle")


def test_an_hour_is_drawn(screen: Screen, attic: Node) -> None:
    history = attic.get("/v1/status/history")
    assert (history["interval_s"], history["max_samples"]) == (10, 360)
    screen.go("/")
    screen.until(HAS, "#hour", "GPU 1")
    assert "2 GPUs" in screen.text("#hour")
    labels = [str(one.get_attribute("aria-label")) for one in screen.page.locator("#hour svg").all()]
    assert len(labels) == 9
    assert re.match(r"Power: \d+ W now, at most \d+ W in the last hour", labels[5])
    drawn = "([n]) => (document.querySelector('#hour svg .line').getAttribute('d').match(/[ML]/g) ?? []).length > n"
    screen.until(drawn, 1)
    points = len(attic.get("/v1/status/history")["samples"])
    screen.until(drawn, points)


def test_who_waits_is_shown(screen: Screen, scene: Scene, attic: Node) -> None:
    screen.go("/")
    with scene.under_way(MARKUP, "full", at=attic, entry=attic, count=3):
        screen.until(HAS, "#queue", "full-")
        assert "Expected" in screen.text("#queue")
        screen.until(IN_MODELS, MARKUP, "2 of 2 busy")
    screen.until(HAS, "#queue", "Nobody waits.")


def test_the_mesh_shows_what_moves(screen: Screen, scene: Scene, attic: Node) -> None:
    screen.go("/mesh")
    screen.until(HAS, "#nodes", "cellar")
    screen.until(HAS, "#head", "2 nodes · 4 models · 0 of 9 slots busy")
    assert screen.page.locator("#nodes tbody th").all_inner_texts() == ["attic this node", "cellar"]
    rows = screen.text("#aliases tbody").splitlines()
    assert [row.split("\t")[:5] for row in rows] == [
        ["coder", SHARED, SMALL, "ok", SHARED],
        ["lost", f"{MARKUP}gone", DASH, "unavailable", "nothing"],
    ]
    screen.until(HAS, "#activity", "cellar is up")
    with scene.under_way(SMALL, "there", at=scene.cellar, entry=attic):
        screen.until(HAS, "#flights", "attic → cellar")
        screen.until(HAS, "#flights", f"{SMALL}/0")
        screen.until(HAS, "#head", "1 of 9 slots busy")
    screen.until(HAS, "#flights", "No request is under way.")
    screen.until(HAS, "#head", "0 of 9 slots busy")


def test_caches_that_moved_are_shown(screen: Screen, scene: Scene) -> None:
    scene.move_a_session("lighthouse")
    until(lambda: scene.cellar.get("/v1/status")["kv_share"]["imports"], "an import was used")
    screen.go("/mesh")
    screen.until(HAS, "#caches", "%")
    cells = {row.split("\t")[0]: row.split("\t")[1:] for row in screen.text("#caches tbody").splitlines()}
    assert int(cells["attic"][0]) >= 1
    assert re.match(r"(warm|partly|cold) \d+ % \(\d+\)", cells["cellar"][4])
    screen.page.goto(f"http://{scene.cellar.host}:{scene.cellar.port}/")
    screen.base = f"http://{scene.cellar.host}:{scene.cellar.port}"
    screen.asked.clear()
    screen.until(HAS, "#caches", SHARED)
    received = screen.page.locator("#caches td[data-label=Received]").inner_text()
    assert int(received) >= 1
    screen.until(HAS, "#caches", "on, group house")
    titles = ("Sent", "Of files", "Imported", "Useless", "Failed", "A send", "An import")
    cells = {title: screen.page.locator(f'#caches td[data-label="{title}"]').inner_text() for title in titles}
    assert int(cells["Imported"]) >= 1, cells
    assert cells["Failed"] == "0", cells
    assert re.match(r"\d+ ms|\d", cells["An import"]), cells


def test_a_chat_streams(screen: Screen) -> None:
    page = screen.go(f"/chat?model={SHARED}&host=cellar")
    screen.until("() => document.querySelector('#host').value === 'cellar'")
    page.get_by_label("Your message").fill("Name three birds.")
    page.keyboard.press("Enter")
    said = """([least, most]) => {
        const n = document.querySelector('.turn.assistant .said')?.innerText.length;
        return n > least && n < most;
    }"""
    screen.until(said, 0, 60)
    screen.until(said, 60, 10_000)
    screen.until("() => !document.querySelector('#send').disabled")
    assert re.search(rf"{SHARED}/0 · first token after .* · \d+ tokens, [\d.]+ a second", screen.text(".facts-line"))
    assert screen.text(".turn.assistant h2") == "cellar"
    screen.shoot("chat-light")
    page.locator(".facts-line a").click()
    screen.until(HAS, "#account", "Chose cellar")
    assert "the client asks for it alone" in screen.text("#account")
    screen.shoot("why-light")


def test_a_chat_can_be_stopped_and_begun_anew(screen: Screen, attic: Node) -> None:
    page = screen.go("/chat?model=coder")
    screen.until("() => document.querySelector('#model').value === 'coder'")
    page.get_by_label("Your message").fill("Go on and on.")
    page.get_by_role("button", name="Send").click()
    screen.until(HAS, ".turn.assistant .said", " ")
    page.get_by_role("button", name="Stop").click()
    screen.until(HAS, ".turn.assistant", "Stopped.")
    until(lambda: attic.idle(SHARED), "the slot is free again")
    page.get_by_role("button", name="New conversation").click()
    screen.until(HAS, "#talk", "Nothing has been said yet.")


def test_a_refusal_is_told(screen: Screen) -> None:
    page = screen.go("/chat?model=lost")
    screen.until("() => document.querySelector('#model').value === 'lost'")
    page.get_by_label("Your message").fill("Anybody?")
    page.keyboard.press("Enter")
    screen.until(HAS, ".broke", "stands for nothing that is served now")
    screen.complaints = [one for one in screen.complaints if "503" not in one]


def test_a_chat_without_a_model_says_so(browser: Any, tmp_path: Path) -> None:
    with (
        started("bare", tmp_path / "node", {}) as node,
        Screen.open(browser, f"http://{node.host}:{node.port}", SHOTS) as screen,
    ):
        page = screen.go("/chat")
        screen.until(HAS, "#model", "no model is served")
        for _ in range(2):
            page.get_by_label("Your message").fill("Anybody?")
            page.keyboard.press("Enter")
        screen.until(HAS, "#talk", "No model is served now")
        assert page.locator(".turn").count() == 1
        assert page.get_by_label("Your message").input_value() == "Anybody?"
        for path, nothing in (("/", "No models are configured here."), ("/mesh", "No other node is known.")):
            screen.go(path)
            screen.until(HAS, "main", nothing)
            screen.shoot(f"empty-{path.strip('/') or 'node'}")
        screen.check()


def test_a_request_that_nobody_knows(screen: Screen) -> None:
    page = screen.go("/why")
    page.get_by_label("Request").fill(MARKUP)
    page.keyboard.press("Enter")
    screen.until(HAS, "#account", "no node that answers knows a request")
    screen.complaints = [one for one in screen.complaints if "404" not in one]
    harmless(screen)


def harmless(screen: Screen) -> None:
    """Nothing that a name or an answer says has become a part of the page."""
    assert screen.page.evaluate("window.taken") is None
    assert (
        screen.page.locator("main :is(img, script, iframe, object, style, [onerror], [onload], [onmouseover])").count()
        == 0
    )


@pytest.mark.parametrize("path", ["/", "/mesh"])
def test_markup_in_names_is_text(screen: Screen, scene: Scene, attic: Node, path: str) -> None:
    screen.go(path)
    with scene.under_way(MARKUP, "markup", at=attic, entry=attic):
        screen.until(HAS, "#flights", MARKUP)
        screen.until(HAS, "#models", MARKUP)
    screen.until(HAS, "#activity", MARKUP)
    harmless(screen)


def test_markup_in_an_answer_is_text(screen: Screen, scene: Scene) -> None:
    text = "<img src=x onerror='window.taken=1'><script>window.taken=2</script>**bold**"
    page = screen.go("/chat")
    screen.until("() => document.querySelector('#model').options.length > 1")
    # What the model says is made of what it is sent, in the node's own engine: here the page's own reader is fed.
    page.evaluate(
        """async ([text]) => {
            const here = document.querySelector('script[type=module]').src.replace(/[^/]*$/, '');
            const { h, show } = await import(here + 'elements.js');
            show(document.getElementById('talk'), h('div', { class: 'said', title: text }, text),
                h('a', { href: 'javascript:window.taken=3' }, text), h('a', { href: '//example.com/' }, text));
        }""",
        [text],
    )
    assert screen.text(".said") == text
    assert page.locator("#talk a[href]").count() == 0
    harmless(screen)
    with pytest.raises(Exception, match="no attribute onclick"):
        page.evaluate(
            """async () => {
                const here = document.querySelector('script[type=module]').src.replace(/[^/]*$/, '');
                const { h, show } = await import(here + 'elements.js');
                show(document.getElementById('talk'), h('p', { onclick: 'window.taken=4' }, 'x'));
            }"""
        )


def test_a_page_cannot_turn_text_into_elements(screen: Screen) -> None:
    page = screen.go("/")
    with pytest.raises(Exception, match="TrustedHTML"):
        page.evaluate("document.body.innerHTML = '<b>bold</b>'")
    screen.complaints = [one for one in screen.complaints if "TrustedHTML" not in one]


def test_a_day_of_events_takes_no_more_room_than_an_hour(screen: Screen) -> None:
    page = screen.go("/mesh")
    screen.until(HAS, "#live", "live")
    sizes = page.evaluate(
        """async ([events]) => {
            const here = document.querySelector('script[type=module]').src.replace(/[^/]*$/, '');
            const { Activity, Flights } = await import(here + 'activity.js');
            const { show } = await import(here + 'elements.js');
            const activity = new Activity(), flights = new Flights(), box = document.createElement('div');
            const found = [];
            for (let n = 1; n <= events; n += 1) {
                const whose = { node_id: `run-${n % 40}`, hostname: 'one', rid: `r${n}` };
                const event = { n, t: 1e9 + n, type: 'request', ...whose, message: 'm → m/0' };
                activity.add(event);
                flights.add(event);
                if (n % 2) flights.add({ ...event, message: 'm → m/0 done (1.0s)' });
                if (n % (events / 4) === 0) {
                    show(box, activity.shown(true), flights.shown()[0]);
                    found.push([activity.size, flights.size, box.querySelectorAll('*').length]);
                }
            }
            return found;
        }""",
        [200_000],
    )
    assert [one[:2] for one in sizes] == [[200, 500]] * 4
    assert max(one[2] for one in sizes) < 3000


def test_a_page_that_is_paused_stands_still(browser: Any, screen: Screen, scene: Scene, attic: Node) -> None:
    page = screen.go("/")
    screen.until(IN_MODELS, MARKUP, "0 of 2 busy")
    page.get_by_role("button", name="Pause").focus()
    page.keyboard.press("Space")
    screen.until(HAS, "#live", "paused")
    with (
        Screen.open(browser, scene.base, SHOTS) as other,
        scene.under_way(MARKUP, "unseen", at=attic, entry=attic),
    ):
        other.go("/")
        other.until(HAS, "#flights", "unseen")
        other.until(IN_MODELS, MARKUP, "1 of 2 busy")
        assert "unseen" not in screen.text("#flights")
        assert "1 of 2 busy" not in screen.text("#models")
        page.keyboard.press("Space")
        screen.until(HAS, "#flights", "unseen")


NAMELESS = """() => [...document.querySelectorAll(
    'button, select, input, textarea, progress, svg:not([aria-hidden]), a[href], [role=region]'
)].filter((one) => !(one.textContent.trim() && !one.matches('select') || one.labels?.length
    || one.getAttribute('aria-label'))).map((one) => one.outerHTML.slice(0, 80))"""


LANDMARKS = """() => [...document.querySelectorAll('section[aria-labelledby], [role=region], nav, ol[aria-label]')]
    .map((one) => one.getAttribute('aria-label')
        ?? document.getElementById(one.getAttribute('aria-labelledby')).innerText)"""


@pytest.mark.parametrize("path", PAGES)
def test_all_can_be_reached_by_keys_and_has_a_name(screen: Screen, path: str) -> None:
    page = screen.go(path)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.innerText") == "Skip to the content"
    page.keyboard.press("Enter")
    page.wait_for_function("() => document.activeElement.id === 'main'")
    assert page.locator("h1").count() == 1
    assert page.evaluate("document.documentElement.lang") == "en"
    assert page.locator("nav [aria-current=page]").count() == 1
    if path in ("/", "/mesh"):
        screen.until(HAS, "#models", SHARED)
        page.keyboard.press("Tab")
        assert page.evaluate("document.querySelector('main').contains(document.activeElement)")
    assert page.evaluate(NAMELESS) == []
    landmarks = page.evaluate(LANDMARKS)
    assert len(set(landmarks)) == len(landmarks), landmarks


@pytest.mark.parametrize("path", PAGES)
def test_a_phone_need_not_scroll_sideways(browser: Any, scene: Scene, tmp_path: Any, path: str) -> None:
    with Screen.open(browser, scene.base, tmp_path, viewport=PHONE, color_scheme="dark") as small:
        small.go(path)
        if path in ("/", "/mesh"):
            small.until(HAS, "#models", SHARED)
        assert small.page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
        small.check()


def test_a_page_outlives_its_node(browser: Any, tmp_path: Path) -> None:
    """It says that the node is gone, comes back with it, and shows nothing of the run before as if it were now."""
    port = free_port("127.0.0.1")
    config = {"api": {"port": port}, "models": [model("m")], "health": {"interval": "0.5s"}}
    with ExitStack() as stack:
        node = stack.enter_context(started("phoenix", tmp_path / "node", config))
        screen = stack.enter_context(Screen.open(browser, f"http://127.0.0.1:{port}", SHOTS))
        screen.go("/mesh")
        killed_under_way(node, screen)
        screen.until(HAS, "#live", "reconnecting, as of ")
        with started("phoenix", tmp_path / "node", config) as again:
            screen.until(HAS, "#live", "live")
            screen.until(HAS, "#flights", "No request is under way.")
            screen.until(HAS, "#nodes", "alive")
            assert screen.page.locator("#nodes tbody tr").count() == 1
            assert again.port == port
            screen.check(lambda said: "ERR_CONNECTION_REFUSED" in said or "ERR_INCOMPLETE_CHUNKED_ENCODING" in said)


def killed_under_way(node: Node, screen: Screen) -> None:
    """A request is under way when the node dies."""
    steps = script(("stream",), ("chunk", b"data: {}\n\n"), ("hold",))
    asking = threading.Thread(target=lambda: asyncio.run(ask(node, chat("m", steps, stream=True))))
    asking.start()
    screen.until(HAS, "#flights", "answering")
    node.process.kill()
    asking.join()

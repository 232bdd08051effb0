"""The page of the mesh with what a browser seldom sees at once: many nodes, long names, caches on their way."""

from __future__ import annotations

from typing import Any

import pytest
from crowd import HAS, LONG, NODES, WIDER, crowd, stream, told
from http_node import Node, until
from looking import DESK, PHONE, SHOTS, Screen
from scene import SMALL, Scene

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

CUT = """() => { const edge = document.querySelector('.flows svg').getBoundingClientRect().left - 1;
    return [...document.querySelectorAll('.flows text')].filter((one) => one.getBoundingClientRect().left < edge)
        .map((one) => one.textContent); }"""
"""Labels of the picture that begin outside it."""

MOVES = "() => getComputedStyle(document.querySelector('.flow.request .line')).animationName"
LOOKS = {"phone": PHONE, "narrow": {"width": 360, "height": 740}, "tablet": {"width": 768, "height": 1024}}
LOOKS |= {"beside": {"width": 1025, "height": 900}, "desk": DESK}


def fits(screen: Screen, name: str | None = None) -> None:
    """In windows of every width nothing is wider than its room; with a name the pictures are kept."""
    for look, viewport in LOOKS.items():
        screen.page.set_viewport_size(viewport)
        assert screen.page.evaluate("document.documentElement.scrollWidth") <= viewport["width"], look
        assert screen.page.evaluate(WIDER) == [], look
        if name is not None:
            screen.shoot(f"{name}-{look}")


def test_many_nodes_with_long_names_have_room(browser: Any, scene: Scene) -> None:
    with Screen.open(browser, scene.base, SHOTS) as screen:
        page = told(screen, crowd())
        screen.until(HAS, "#head", "50 nodes")
        screen.until(HAS, "#between", "and 30 more")
        fits(screen)
        assert page.locator("#nodes tbody tr").count() == NODES
        assert page.locator(".flows text").count() == 16
        assert page.evaluate(CUT) == []
        flat = screen.text("#nodes").replace("\n", " ")
        screen.shoot("crowd")
        assert "8 \N{MULTIPLICATION SIGN} NVIDIA H200 NVL: 50 %, 703 GiB of 1,117 GiB, 3,466 W" in flat
        screen.check()


@pytest.mark.parametrize("nodes", [0, 1, 12])
def test_any_number_of_nodes_has_room(browser: Any, scene: Scene, nodes: int) -> None:
    with Screen.open(browser, scene.base, SHOTS, color_scheme="dark") as screen:
        told(screen, crowd(nodes))
        screen.until(HAS, "#head", f"{nodes} node")
        fits(screen)
        assert screen.page.evaluate("window.taken") is None
        screen.check()


def test_a_node_of_many_slots_and_long_names_has_room(browser: Any, scene: Scene, attic: Node) -> None:
    status = attic.get("/v1/status")
    counts = {"sent": 1234, "sent_bytes": 10**11, "sent_share": 0.04, "received": 1234, "imported": 300, "useless": 2}
    took = {"failed": 1, "import_failed": 1, "send_seconds": 312.0, "import_seconds": 250.0}
    turns = {kind: {"warm": 90, "partly": 5, "cold": 5} for kind in ("host", "backend", "none")}
    kv = {"state": "on", "group": "a-house-" * 7, **counts, **took, "turns": turns}
    backend = {"id": f"{LONG}/0", "status": "starting", "phase": "loading the weights", "progress": 0.4, "respawns": 3}
    backend |= {"slot_states": ["free", "running", "wedged", "saving"] * 16, "gpus": list(range(8)), "pid": 12345}
    models = [{**status["models"][0], "name": LONG, "kv_share": kv, "backends": [backend]}]
    with Screen.open(browser, scene.base, SHOTS) as screen:
        page = told(screen, stream(("status", {**status, "models": models})), "/")
        screen.until(HAS, "#caches", "Turns from another host")
        fits(screen, "caches")
        assert page.locator("#caches td[data-label='Of files']").inner_text() == "4 %"
        screen.check()


def test_an_account_with_long_names_has_room(browser: Any, scene: Scene) -> None:
    place = {"id": f"{LONG}/0", "free": 1, "slots": 4, "rank": 0, "predicted_ms": 1234.5, "price_ms": 99_999.0}
    choice = {"after_ms": 1, "policy": "predicted", "rule": "the lowest price", "chosen": place["id"]}
    account = {"at": 10**9, "node": "n" * 63, "path": "/v1/chat/completions", "model": LONG, "state": "waiting"}
    account |= {"choices": [{**choice, "candidates": [place, {**place, "id": "n" * 63, "waiting": 3, "wait_ms": 99}]}]}
    account |= {"tries": [{"place": place["id"], "ms": 20, "reason": "z" * 120}]}
    with Screen.open(browser, scene.base, SHOTS) as screen:
        screen.page.route("**/v1/why/*", lambda route: route.fulfill(json=account))
        screen.go("/why/long")
        screen.until(HAS, "#account", "Tried before")
        fits(screen, "why-long")
        screen.check()


def test_a_field_stands_beside_its_label(browser: Any, scene: Scene) -> None:
    """A long name of a model takes the room of both, and yet no label is left alone at the end of a line."""
    with Screen.open(browser, scene.base, SHOTS, viewport=LOOKS["tablet"]) as screen:
        screen.page.route("**/v1/models", lambda route: route.fulfill(json={"data": [{"id": LONG}]}))
        page = screen.go("/chat")
        screen.until("([long]) => document.querySelector('#model').value === long", LONG)
        for field in ("model", "host"):
            label, box = (page.locator(one).bounding_box() for one in (f"label[for={field}]", f"#{field}"))
            assert abs(label["y"] + label["height"] / 2 - box["y"] - box["height"] / 2) < 2, field
            assert box["x"] + box["width"] <= LOOKS["tablet"]["width"]
        screen.check()


def test_figures_below_nought_are_not_shown(screen: Screen) -> None:
    """A node refuses them from others; whatever comes, the page shows none."""
    odd = {"name": "m", "engine": "e", "slots": -3, "busy": -1, "queued": -9, "ctx": -4, "healthy_backends": -1}
    kv = {"sent": -4, "sent_bytes": -1, "imports": [{"model": "m", "warm": -1, "cold": -5}]}
    card = {"index": 0, "util": -40, "power_w": -9}
    status = {"host_mem_total_mb": -5, "gpus": [card], "models": [odd], "kv_share": kv}
    one = {"node": "odd", "node_id": "x", "addr": "javascript:alert(1)", "state": "alive", "models": [odd]}
    cluster = {"view": "me", "mesh": "open", "members": [{**one, "status": status}], "models": ["m"]}
    page = told(screen, stream(("cluster", cluster), ("aliases", {"aliases": []})))
    screen.until(HAS, "#models", "odd")
    assert "-" not in screen.text("#head") + screen.text("#nodes") + screen.text("#models") + screen.text("#caches")
    assert page.locator("#nodes a[href]").count() == 0


def test_what_goes_between_nodes_is_drawn(browser: Any, scene: Scene, attic: Node) -> None:
    before = scene.sent()
    scene.move_a_session("drawn")
    until(lambda: scene.sent() > before, "a cache was sent")
    with Screen.open(browser, scene.base, SHOTS) as screen:
        page = screen.go("/mesh")
        screen.until("() => document.querySelector('.flow.cache')")
        assert page.locator(".flow.request").count() == 0
        with scene.under_way(SMALL, "drawn", at=scene.cellar, entry=attic):
            screen.until("() => document.querySelector('.flow.request[data-state=moving]')")
            said = str(page.locator(".flows svg").get_attribute("aria-label"))
            assert "attic to cellar: 1 request, " in said
            assert page.evaluate(MOVES) == "flow"
            row = page.locator("#between tbody tr").first.locator("th, td").all_inner_texts()
            assert row[:3] == ["attic", "cellar", "1"]
            page.emulate_media(reduced_motion="reduce")
            assert page.evaluate(MOVES) == "none"
        screen.until("() => !document.querySelector('.flow.request')")
        screen.check()


def test_a_cache_that_was_just_sent_is_seen_to_move(screen: Screen) -> None:
    """What was sent before the page was opened stands still."""
    page = screen.go("/mesh")
    screen.until(HAS, "#live", "live")
    seen = page.evaluate(
        """async () => {
            const here = document.querySelector('script[type=module]').src.replace(/[^/]*$/, '');
            const { Between } = await import(here + 'between.js');
            const { show } = await import(here + 'elements.js');
            const between = new Between(), box = document.createElement('div');
            const links = (sent) => ({ kv_share: { links: [{ node: 'b', sent }] } });
            const members = (sent) => [{ node: 'a', status: links(sent) }, { node: 'b' }];
            const look = (sent, now, heard) => {
                if (heard) between.heard(members(sent), now);
                const [shown, again] = between.shown(members(sent), [], null, now);
                show(box, shown);
                return [box.querySelectorAll('.flow.cache[data-state=moving]').length, again];
            };
            return [look(3, 0, true), look(4, 1000, true), look(4, 2000, true), look(4, 9000, false)];
        }"""
    )
    assert seen == [[0, False], [1, True], [1, True], [0, False]]

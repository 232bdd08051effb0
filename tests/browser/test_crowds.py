"""The page of the mesh with what a browser seldom sees at once: many nodes, long names, caches on their way."""

from __future__ import annotations

import json
from typing import Any

import pytest
from http_node import Node, until
from looking import DESK, PHONE, SHOTS, Screen
from scene import SMALL, Scene

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

NODES = 50
HAS = "([where, text]) => document.querySelector(where)?.innerText.includes(text)"
WIDER = """() => [...document.querySelectorAll('td, tbody th, .scroll, dd')]
    .filter((one) => one.clientWidth && one.scrollWidth > one.clientWidth + 1)
    .map((one) => `${one.scrollWidth} > ${one.clientWidth}: ${one.innerText.slice(0, 60)}`)"""
MOVES = "() => getComputedStyle(document.querySelector('.flow.request .line')).animationName"


def named(number: int) -> str:
    return f"node-{number % NODES:02d}-a-machine-with-a-very-long-name.example"


def member(number: int) -> dict[str, Any]:
    """One node: three models, up to eight cards, caches that it has sent to another."""
    name, node_id = named(number), f"id-{number}"
    models = [
        {"name": f"some/really-long-model-name-{one}-70B-Instruct-Q4_K_M", "engine": "llamacpp", "slots": 4, "busy": 1}
        | {"queued": number % 3, "ctx": 131_072, "healthy_backends": one, "backends": 2}
        for one in range(3)
    ]
    card = {"name": "NVIDIA H200 NVL", "util": 50, "vram_used_mb": 90_000, "vram_total_mb": 143_000, "power_w": 433.3}
    link = {"node": named(number + 7), "sent": 9 + number, "failed": 1, "sent_bytes": 10**9, "under_way": number % 2}
    kv = {"sent": 9 + number, "sent_bytes": 10**9, "links": [link], "imports": [{"model": "m", "warm": 9, "cold": 1}]}
    told = {"gpus": [{"index": one, **card} for one in range(number % 9)], "models": models, "kv_share": kv}
    memory = {"host_mem_total_mb": 515_000, "host_mem_used_mb": 123_456}
    whose = {"node": name, "node_id": node_id, "ver": "0.1.0"}
    return {
        **whose,
        "addr": f"10.0.0.{number}:8086",
        "state": "alive",
        "models": models,
        "status": whose | told | memory,
    }


def stream(*events: tuple[str, dict[str, Any]]) -> str:
    return "".join(f"event: {name}\ndata: {json.dumps(data)}\n\n" for name, data in events)


def crowd() -> str:
    cluster = {"view": named(0), "mesh": "secured", "members": [member(one) for one in range(NODES)], "models": []}
    requests = (
        {"t": 10**9, "n": one + 1, "type": "request", "node_id": f"id-{one}", "hostname": named(one), "rid": f"r-{one}"}
        | {"message": f"some/really-long-model-name-0-70B-Instruct-Q4_K_M → peer {named(one + 7)}"}
        for one in range(NODES)
    )
    return stream(("cluster", cluster), ("aliases", {"aliases": []}), *(("activity", one) for one in requests))


def told(screen: Screen, body: str) -> Any:
    """The page, with a stream that somebody else has made."""
    screen.page.route("**/v1/mesh/stream", lambda route: route.fulfill(content_type="text/event-stream", body=body))
    return screen.go("/mesh")


@pytest.mark.parametrize("look", ["desk", "phone"])
def test_many_nodes_with_long_names_have_room(browser: Any, scene: Scene, look: str) -> None:
    viewport = {"desk": DESK, "phone": PHONE}[look]
    with Screen.open(browser, scene.base, SHOTS, viewport=viewport) as screen:
        page = told(screen, crowd())
        screen.until(HAS, "#head", "50 nodes")
        screen.until(HAS, "#between", "and 30 more")
        assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"]
        assert page.evaluate(WIDER) == []
        assert page.locator("#nodes tbody tr").count() == NODES
        assert page.locator(".flows text").count() == 16
        flat = screen.text("#nodes").replace("\n", " ")
        assert "8 \N{MULTIPLICATION SIGN} NVIDIA H200 NVL: 50 %, 703 GiB of 1,117 GiB, 3,466 W" in flat
        screen.shoot(f"crowd-{look}")
        screen.check()


@pytest.mark.parametrize("look", ["desk", "phone"])
def test_a_node_s_figures_of_caches_have_room(browser: Any, scene: Scene, attic: Node, look: str) -> None:
    viewport = {"desk": DESK, "phone": PHONE}[look]
    status = attic.get("/v1/status")
    counts = {"sent": 1234, "sent_bytes": 10**11, "sent_share": 0.04, "received": 1234, "imported": 300, "useless": 2}
    took = {"failed": 1, "import_failed": 1, "send_seconds": 312.0, "import_seconds": 250.0}
    turns = {kind: {"warm": 90, "partly": 5, "cold": 5} for kind in ("host", "backend", "none")}
    kv = {"state": "on", "group": "house", **counts, **took, "turns": turns}
    models = [{**one, "name": member(0)["models"][0]["name"], "kv_share": kv} for one in status["models"][:1]]
    body = stream(("status", {**status, "models": models}))
    with Screen.open(browser, scene.base, SHOTS, viewport=viewport) as screen:
        screen.page.route(
            "**/v1/status/stream", lambda route: route.fulfill(content_type="text/event-stream", body=body)
        )
        page = screen.go("/")
        screen.until(HAS, "#caches", "Turns from another host")
        assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"]
        assert page.evaluate(WIDER) == []
        assert page.locator("#caches td[data-label='Of files']").inner_text() == "4 %"
        screen.shoot(f"caches-{look}")
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
                const [shown, again] = between.shown(members(sent), [], now);
                show(box, shown);
                return [box.querySelectorAll('.flow.cache[data-state=moving]').length, again];
            };
            return [look(3, 0, true), look(4, 1000, true), look(4, 2000, true), look(4, 9000, false)];
        }"""
    )
    assert seen == [[0, False], [1, True], [1, True], [0, False]]

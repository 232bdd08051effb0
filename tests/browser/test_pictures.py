"""What the dashboards look like, kept as pictures: light, dark, and on a phone; and that they can be read."""

from __future__ import annotations

import json
import math
import re
import time
from typing import Any

import pytest
from http_node import Node, until
from looking import DESK, PHONE, SHOTS, Screen
from scene import OWN, SHARED, SMALL, Scene

from viiwork_core.web.pages import STATIC

HAS = "([where, text]) => document.querySelector(where)?.innerText.includes(text)"
LOOKS: dict[str, dict[str, Any]] = {
    "light": {"viewport": DESK, "color_scheme": "light"},
    "dark": {"viewport": DESK, "color_scheme": "dark"},
    "phone": {"viewport": PHONE, "color_scheme": "light", "device_scale_factor": 2, "is_mobile": True},
}


def an_hour() -> dict[str, Any]:
    """Samples as a busy machine would have taken them, with a break in the middle."""
    now, samples = int(time.time()), []
    for i in range(360):
        if 200 <= i < 220:
            continue
        wave = (1 + math.sin(i / 17)) / 2
        load = round(97 * wave**2)
        card = {"index": 0, "util": load, "vram_used_mb": 9000 + 20 * i, "power_w": 60 + 2.4 * load}
        idle = {"index": 1, "util": 0, "vram_used_mb": 1, "power_w": 30}
        told = {"slots": 4, "busy": round(4 * wave), "queued": max(0, round(5 * wave - 3))}
        samples.append({"t": now - (360 - i) * 10, **told, "host_mem_used_mb": 5000 + 10 * i, "gpus": [card, idle]})
    return {"interval_s": 10.0, "max_samples": 360, "samples": samples}


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("look", LOOKS)
def test_pictures(browser: Any, scene: Scene, attic: Node, look: str) -> None:
    scene.move_a_session(f"picture-{look}")
    until(lambda: scene.cellar.get("/v1/status")["kv_share"]["imports"], "an import was used")
    with Screen.open(browser, scene.base, SHOTS, **LOOKS[look]) as screen:
        screen.page.route("**/v1/status/history", lambda route: route.fulfill(json=an_hour()))
        with (
            scene.under_way(OWN, f"{look}-here", at=attic, entry=attic, count=3),
            scene.under_way(SMALL, f"{look}-there", at=scene.cellar, entry=attic),
        ):
            screen.go("/")
            screen.until(HAS, "#queue", f"{look}-here")
            screen.until("() => document.querySelectorAll('#hour svg').length === 9")
            screen.shoot(f"node-{look}")
            screen.go("/mesh")
            screen.until(HAS, "#flights", "attic → cellar")
            screen.until(HAS, "#caches", "%")
            screen.shoot(f"mesh-{look}")
        page = screen.go(f"/chat?model={SHARED}")
        screen.until("() => document.querySelector('#model').options.length > 3")
        for words in ("Tell me of the lighthouse.", "And then?"):
            page.get_by_label("Your message").fill(words)
            page.keyboard.press("Enter")
            screen.until("() => !document.querySelector('#send').disabled")
        screen.shoot(f"chat-{look}")
        page.locator(".facts-line a").last.click()
        screen.until(HAS, "#account", "Chose")
        screen.shoot(f"why-{look}")
        assert page.evaluate("document.documentElement.scrollWidth") <= LOOKS[look]["viewport"]["width"]
        screen.check()


def luminance(colour: str) -> float:
    parts = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    red, green, blue = (one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_colours_can_be_told_apart() -> None:
    """4.5 to 1 for all that is read, in both appearances, as WCAG wants it."""
    schemes = [
        dict(re.findall(r"--(\w+): (#[0-9a-f]{6});", block))
        for block in re.findall(r":root \{(.*?)\}", css(), re.DOTALL)
    ]
    assert len(schemes) == 2
    for colours in schemes:
        for paper in ("page", "deep"):
            for ink in ("ink", "faint", "link", "well", "waits", "ill"):
                light, dark = sorted((luminance(colours[paper]), luminance(colours[ink])), reverse=True)
                assert (light + 0.05) / (dark + 0.05) >= 4.5, json.dumps([paper, ink, colours[ink]])
            # And 3 to 1 for the edges of what can be pressed and filled in.
            light, dark = sorted((luminance(colours[paper]), luminance(colours["edge"])), reverse=True)
            assert (light + 0.05) / (dark + 0.05) >= 3, json.dumps([paper, "edge", colours["edge"]])


def css() -> str:
    return (STATIC / "style.css").read_text()

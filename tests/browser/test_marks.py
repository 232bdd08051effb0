"""What the page of a node says of models whose caches a real llama-server cannot use again."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from http_node import started
from looking import PHONE, SHOTS, Screen
from meshes import free_port, mesh_at

sys.path.append(str(Path(__file__).parents[1] / "e2e"))

from odd_models import WINDOW, write_hybrid, write_sliding  # found by the line above

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

HOST = "127.0.0.31"
MOVING = "#caches td[data-label=Moving]"


@pytest.mark.parametrize(
    ("write", "words"), [(write_sliding, f"a sliding window of {WINDOW} tokens"), (write_hybrid, "recurrent or hybrid")]
)
def test_a_model_whose_caches_cannot_move_is_marked(
    browser: Any, llama_server: None, tmp_path: Path, write: Callable[[Path], Path], words: str
) -> None:
    model = {"name": "odd", "engine": "llamacpp", "path": str(write(tmp_path / "odd.gguf")), "context": 2048}
    model |= {"parallel": 2, "llamacpp": {"threads": 1}, "kv_share": {"group": "pair", "min_tokens": 100}}
    # Without a mesh there is nowhere for a cache to go, and nothing to say of it.
    config = {"models": [model], "mesh": mesh_at(HOST, free_port(HOST), [])}
    with (
        started("attic", tmp_path / "node", config, plugins="llamacpp") as node,
        Screen.open(browser, f"http://{node.host}:{node.port}", SHOTS) as screen,
    ):
        page = screen.go("/")
        screen.until(f"([words]) => document.querySelector('{MOVING} .reason')?.innerText.includes(words)", words)
        assert screen.text(MOVING).startswith("off, group pair")
        assert page.locator(f"{MOVING} .state").get_attribute("data-state") == "off"
        # It is the sharing that is off: the model itself serves.
        assert page.locator("#models [data-state=healthy]").count() == 1
        figures = page.locator("#caches tbody").first.locator("td.n").all_inner_texts()
        screen.shoot(f"off-{write.__name__}")
        page.set_viewport_size(PHONE)
        assert page.locator(f"{MOVING} .reason").is_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
        assert set(figures) <= {"0", "\N{EN DASH}"}, figures
        screen.check()

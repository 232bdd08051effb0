"""The filter of the page of the mesh: what it narrows, where it is kept, and when it is there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from crowd import HAS, NODES, crowd, hears, named, told
from looking import SHOTS, Screen
from scene import MARKUP, Scene

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

IS = "([where, text]) => document.querySelector(where)?.innerText === text"
ADDRESS = "([query]) => location.search === query"


@pytest.fixture
def screen(browser: Any, scene: Scene) -> Iterator[Screen]:
    """A page of fifty nodes: each fifth is suspect, each tenth drains and serves a model like it."""
    with Screen.open(browser, scene.base, SHOTS) as made:
        told(made, crowd())
        made.until(IS, "#found", "50 nodes")
        yield made
        made.check()


def looked_for(screen: Screen, words: str) -> str:
    """What the page says of them."""
    screen.page.get_by_label("Filter").fill(words)
    return screen.text("#found")


def column(screen: Screen, section: str, title: str | None = None) -> set[str]:
    """All that a column of a table says; None: its first."""
    where = f"td[data-label='{title}']" if title else "th"
    return set(screen.page.locator(f"#{section} tbody {where}").all_inner_texts())


def test_a_state_narrows_all_that_is_told_of_nodes(screen: Screen) -> None:
    assert looked_for(screen, "Suspect") == "10 of 50 nodes"
    wanted = {named(one) for one in range(3, NODES, 5)}
    assert column(screen, "nodes") == wanted
    assert column(screen, "models", "Node") == wanted
    assert column(screen, "caches") == wanted
    ways = zip(
        screen.page.locator("#between tbody th").all_inner_texts(),
        screen.page.locator("#between td[data-label=To]").all_inner_texts(),
        strict=True,
    )
    assert all(wanted & set(way) for way in ways)
    # What is under way, aliases and events are not filtered, nor are the sums of all.
    assert len(column(screen, "flights", "Node")) == NODES
    screen.until(HAS, "#head", "50 nodes")
    screen.shoot("filter")


def test_a_model_narrows_its_rows_alone(screen: Screen) -> None:
    assert looked_for(screen, "every-4th") == "5 of 50 nodes"
    assert column(screen, "models") == {"every-4th"}
    assert looked_for(screen, f"every-4th {named(4)}") == "1 of 50 nodes"
    assert looked_for(screen, "every-4th draining") == "0 of 50 nodes"
    assert screen.text("#nodes") == "No node has these words."
    assert screen.text("#models") == "No model has these words."
    assert looked_for(screen, "  ") == "50 nodes"
    assert screen.page.locator("#nodes tbody tr").count() == NODES


def test_it_is_kept_in_the_address_and_found_by_keys(screen: Screen) -> None:
    page = screen.page
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.labels[0].innerText") == "Filter"
    page.keyboard.type("draining &")
    page.keyboard.press("Backspace")
    page.keyboard.press("Enter")
    assert page.url == f"{screen.base}/mesh?filter=draining#main"
    page.reload()
    screen.until(IS, "#found", "5 of 50 nodes")
    assert page.get_by_label("Filter").input_value() == "draining"
    page.get_by_label("Filter").press("Escape")
    assert screen.text("#found") == "50 nodes"
    screen.until(ADDRESS, "")
    assert page.evaluate("location.hash") == "#main"


def test_what_is_typed_comes_into_the_address_by_itself(screen: Screen) -> None:
    looked_for(screen, f"{MARKUP} & more")
    screen.until("([text]) => new URLSearchParams(location.search).get('filter') === text", f"{MARKUP} & more")
    screen.page.reload()
    screen.until(IS, "#found", "0 of 50 nodes")
    assert screen.page.evaluate("window.taken") is None


def test_it_outlives_what_happens(screen: Screen) -> None:
    """Nodes come and go: the words stay, the field keeps the focus, and the count is right."""
    assert looked_for(screen, "suspect") == "10 of 50 nodes"
    hears(screen, crowd(64))
    screen.until(IS, "#found", "13 of 64 nodes")
    hears(screen, crowd(4))
    screen.until(IS, "#found", "1 of 4 nodes")
    assert screen.page.evaluate("document.activeElement.id") == "wanted"


def test_a_page_that_is_paused_can_be_filtered(screen: Screen) -> None:
    screen.page.get_by_role("button", name="Pause").click()
    hears(screen, crowd(64))
    with screen.page.expect_response("**/v1/mesh/stream"):
        pass
    assert looked_for(screen, "suspect") == "10 of 50 nodes"
    screen.page.get_by_role("button", name="Pause").click()
    screen.until(IS, "#found", "13 of 64 nodes")


def test_few_nodes_have_no_field_until_it_is_used(browser: Any, scene: Scene) -> None:
    with Screen.open(browser, scene.base, SHOTS) as screen:
        page = screen.go("/mesh")
        screen.until(HAS, "#nodes", "cellar")
        assert not page.get_by_label("Filter").is_visible()
        # A way to undo what an address asks for.
        screen.go("/mesh?filter=cell")
        screen.until(IS, "#found", "1 of 2 nodes")
        assert column(screen, "nodes") == {"cellar"}
        page.get_by_label("Filter").fill("")
        screen.until(IS, "#found", "2 nodes")
        page.get_by_label("Filter").press("Tab")
        screen.until("() => document.querySelector('#filter').hidden")
        screen.check()

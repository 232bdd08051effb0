"""What viiwork top shows of a recorded mesh, and what its keys do."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("textual")
sys.path.insert(0, str(Path(__file__).parent))

from recorded_mesh import WALL, Teller, telling  # found by the line above
from textual.pilot import Pilot
from textual.widgets import Input

from viiwork_core.cli.operator import Operator
from viiwork_core.cli.top.screen import SECTIONS, Top
from viiwork_core.errors import ViiworkError

SNAPSHOTS = Path(__file__).parent / "snapshots"
NOW = 1000.0


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times of day are those of the recording, wherever the tests run."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()


def looking(teller: Teller) -> Top:
    """The screen of whoever looks at the recorded node, at the moment when the recording ended."""
    node = Operator(f"http://127.0.0.1:{teller.port}", "", "NO_SECRET_HERE")
    return Top(lambda: node, "http://127.0.0.1:8086", monotonic=lambda: NOW, wall=lambda: WALL)


def shown(app: Top) -> str:
    """The characters of the whole screen. Textual has no public way to ask for them."""
    strips = app.screen._compositor.render_strips()
    return "".join("".join(segment.text for segment in strip).rstrip() + "\n" for strip in strips)


async def settled(pilot: Pilot[None], app: Top, holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not holds():  # noqa: ASYNC110  # what it waits for is the screen's, which has no event for it
            await asyncio.sleep(0.01)
    app.tick()
    await pilot.pause()


def complete(app: Top) -> bool:
    return len(app.picture.members) == 3 and len(app.picture.flights(NOW)) == 3


def compared(name: str, text: str) -> None:
    """With the file of that name; VIIWORK_SNAPSHOTS=write writes it anew."""
    path = SNAPSHOTS / name
    if os.environ.get("VIIWORK_SNAPSHOTS") == "write":
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text(), f"another picture than {path.name}; VIIWORK_SNAPSHOTS=write takes it over"


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
def test_the_mesh_as_it_was_recorded(size: tuple[int, int]) -> None:
    async def scene() -> str:
        async with telling() as teller:
            app = looking(teller)
            async with app.run_test(size=size) as pilot:
                await settled(pilot, app, lambda: complete(app))
                return shown(app)

    compared(f"mesh-{size[0]}x{size[1]}.txt", asyncio.run(scene()))


def test_each_section_can_be_gone_to() -> None:
    async def scene() -> list[str]:
        async with telling() as teller:
            app = looking(teller)
            async with app.run_test(size=(80, 24)) as pilot:
                await settled(pilot, app, lambda: complete(app))
                seen = []
                for place in range(1, SECTIONS + 1):
                    await pilot.press(str(place))
                    await pilot.pause()
                    seen.append(shown(app))
                return seen

    for place, screen in enumerate(asyncio.run(scene()), start=1):
        assert f"{place} " in screen
        assert any(line.startswith(f"{place} ") for line in screen.splitlines()), screen
    compared("sections-80x24.txt", "\f\n".join(asyncio.run(scene())))


def test_only_rows_with_a_text() -> None:
    async def scene() -> tuple[str, str, str]:
        async with telling() as teller:
            app = looking(teller)
            async with app.run_test(size=(80, 24)) as pilot:
                await settled(pilot, app, lambda: complete(app))
                await pilot.press("slash", *"GEMMA", "enter")
                app.tick()
                await pilot.pause()
                some = shown(app)
                await pilot.press("question_mark")
                await pilot.pause()
                keys = shown(app)
                await pilot.press("x", "escape")
                app.tick()
                await pilot.pause()
                assert not app.query_one("#find", Input).display
                return some, keys, shown(app)

    some, keys, everything = asyncio.run(scene())
    assert "rows with 'GEMMA'" in some
    assert "2 Models by node (1)" in some
    assert "None of 3 has the text." in some
    assert "1 to 6       nodes, models" in keys
    assert "1 Nodes (3)" in everything


def test_a_pause_stops_the_painting_and_not_the_listening() -> None:
    async def scene() -> tuple[str, str, str]:
        async with telling() as teller:
            app = looking(teller)
            async with app.run_test(size=(80, 24)) as pilot:
                await settled(pilot, app, lambda: complete(app))
                await pilot.press("p")
                app.take("aliases", {"aliases": [{"name": "newcomer", "target": "x", "fallbacks": [], "state": "ok"}]})
                app.tick()
                await pilot.press("4")
                await pilot.pause()
                paused = shown(app)
                await pilot.press("p")
                app.tick()
                await pilot.pause()
                return paused, shown(app), app.picture.aliases[0]["name"]

    paused, after, known = asyncio.run(scene())
    assert "paused" in paused
    assert "newcomer" not in paused
    assert "newcomer" in after
    assert known == "newcomer"


@pytest.mark.parametrize("size", [(79, 24), (80, 23), (20, 5)])
def test_a_terminal_that_is_too_small_is_told_so(size: tuple[int, int]) -> None:
    async def scene() -> tuple[str, str]:
        async with telling() as teller:
            app = looking(teller)
            async with app.run_test(size=size) as pilot:
                await settled(pilot, app, lambda: complete(app))
                small = shown(app)
                await pilot.resize_terminal(80, 24)
                await pilot.pause()
                app.tick()
                await pilot.pause()
                return small, shown(app)

    small, large = asyncio.run(scene())
    assert "80 columns" in " ".join(small.split())
    assert "alpha" not in small
    assert "alpha" in large


def test_a_node_that_went_away_is_asked_again() -> None:
    async def scene() -> tuple[str, str, int]:
        async with telling() as teller:
            app = looking(teller)
            async with app.run_test(size=(80, 24)) as pilot:
                await settled(pilot, app, lambda: complete(app))
                teller.hang_up()
                await settled(pilot, app, lambda: app.state.startswith("reconnecting"))
                away = shown(app)
                await settled(pilot, app, lambda: app.state == "live" and complete(app))
                return away, shown(app), teller.asked

    away, back, asked = asyncio.run(scene())
    assert "reconnecting: has ended the stream" in away
    assert "gemma-12b" in away, "what was known stays on the screen"
    assert "live" in back
    assert asked == 2


def test_a_node_that_comes_back_at_another_port_is_shown_there() -> None:
    async def scene() -> tuple[str, str]:
        async with telling() as before, telling() as after:
            nodes = [Operator(f"http://127.0.0.1:{one.port}", "", "NO_SECRET_HERE") for one in (before, after)]
            app = Top(lambda: nodes[1 if before.asked else 0], nodes[0].api)
            async with app.run_test(size=(100, 24)) as pilot:
                await settled(pilot, app, lambda: app.state == "live")
                before.hang_up()
                await settled(pilot, app, lambda: after.asked == 1 and app.state == "live")
                return shown(app).splitlines()[0], nodes[1].api

    head, address = asyncio.run(scene())
    assert head == f"viiwork top  {address}  live"


def test_without_a_node_it_says_so_and_waits() -> None:
    def nobody() -> Operator:
        raise ViiworkError("no node runs here")

    async def scene() -> str:
        app = Top(nobody, "http://127.0.0.1:8086")
        async with app.run_test(size=(80, 24)) as pilot:
            await settled(pilot, app, lambda: app.state.startswith("reconnecting"))
            return shown(app)

    screen = asyncio.run(scene())
    assert "reconnecting: no node runs here" in screen
    assert "nothing is known yet" in screen


def test_q_ends_it() -> None:
    async def scene() -> int | None:
        async with telling() as teller:
            app = looking(teller)
            async with app.run_test(size=(80, 24)) as pilot:
                await pilot.press("q")
                await pilot.pause()
            return app.return_code

    assert asyncio.run(scene()) == 0

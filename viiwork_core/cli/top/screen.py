"""The screen of viiwork top. Needs textual, and is imported by nobody else."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final

from textual import events
from textual.app import App, ComposeResult
from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from viiwork_core.cli.operator import Operator
from viiwork_core.cli.top.lines import Line, Meaning, Piece, cells, cut
from viiwork_core.cli.top.picture import Picture
from viiwork_core.cli.top.sections import head, sections
from viiwork_core.cli.top.stream import followed

SMALLEST: Final = (80, 24)
"""Columns and lines."""

TICK_S: Final = 0.2
"""It is painted so often at most, however much happens."""

SECTIONS: Final = 6
_FOOT: Final = "q quit   ↑ ↓ scroll   1-6 section   / find   p pause   ? keys"
_KEYS: Final = """\
q            end
↑ ↓          scroll a line; PageUp, PageDown a page; Home, End
1 to 6       nodes, models, requests, aliases, caches, events
/            only rows with a text; Enter keeps it, Escape ends it
p            pause: it is not painted, and goes on listening
?            this; any key goes back"""

_STYLES: Final[dict[Meaning, str]] = {
    "": "",
    "title": "bold underline",
    "head": "$text-muted",
    "good": "$text-success",
    "warn": "$text-warning",
    "bad": "bold $text-error",
    "faint": "$text-muted",
    "name": "bold",
}


class Keys(ModalScreen[None]):
    """The keys, until one is pressed."""

    DEFAULT_CSS = "Keys { align: center middle; } Keys > Static { width: 74; height: auto; border: round $primary; }"

    def compose(self) -> ComposeResult:
        """One box."""
        yield Static(Content(_KEYS))

    def on_key(self, event: events.Key) -> None:
        """Any key."""
        event.stop()
        self.dismiss()


class Top(App[None]):
    """Shows what a node tells of the mesh, until told to end."""

    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #head, #state, #foot, #small { height: 1; width: 100%; }
    #foot { color: $text-muted; }
    #small { height: 100%; content-align: center middle; display: none; }
    #find { height: 1; border: none; padding: 0; display: none; }
    #body { height: 1fr; scrollbar-size-vertical: 1; }
    .section { height: auto; width: 100%; margin-bottom: 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        ("q", "quit", "Quit"),
        ("p", "pause", "Pause"),
        ("slash", "find", "Find"),
        ("question_mark", "keys", "Keys"),
        ("escape", "everything", "Show all rows"),
        *((str(place), f"go({place})", f"Section {place}") for place in range(1, SECTIONS + 1)),
    ]

    def __init__(
        self,
        find: Callable[[], Operator],
        address: str,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """`find` looks the node up, in a thread; `address` is where it was when this began."""
        # In the terminal's own colours NO_COLOR means none at all; in textual's it would mean grey ones.
        super().__init__(ansi_color=bool(os.environ.get("NO_COLOR")) or None)
        self.picture = Picture()
        self._find = find
        self._address, self._at = address, ""
        self._monotonic, self._wall = monotonic, wall
        self.state = "connecting"
        """In words: live, or why it is not."""

        self._paused = False
        self._dirty = True
        self._wanted = ""
        # Not looked for when they are painted: the keys may be shown on a screen of their own then.
        self._small, self._line, self._head = Static(id="small"), Static(id="state"), Static(id="head")
        self._sections = [Static(id=f"section-{place + 1}", classes="section") for place in range(SECTIONS)]
        self._body = VerticalScroll(*self._sections, id="body")
        self._field = Input(id="find", placeholder="text to look for", max_length=100)
        self._foot = Static(Content(_FOOT), id="foot")

    def compose(self) -> ComposeResult:
        """From top to bottom."""
        yield from (self._small, self._line, self._head, self._body, self._field, self._foot)

    def on_mount(self) -> None:
        """Listen, and paint."""
        self._body.focus()
        self.run_worker(followed(self._node, begin=self.began, take=self.take, lost=self.lost))
        self.set_interval(TICK_S, self.tick)
        self.tick()

    def _node(self) -> Operator:
        """The node; where it listens elsewhere since it was started again, the head says so. In a thread."""
        node = self._find()
        if self._at not in ("", node.api):
            self._address = node.api
        self._at = node.api
        return node

    # What the node tells

    def began(self) -> None:
        """The stream begins."""
        self.picture.begin()
        self._say("live")

    def take(self, name: str, data: Any) -> None:
        """One event of it."""
        self.picture.take(name, data, now=self._monotonic(), wall=self._wall())
        self._dirty = True

    def lost(self, reason: str) -> None:
        """It broke; it is tried again."""
        self._say(f"reconnecting: {reason.removeprefix(f'the node at {self._at} ')}")

    def _say(self, state: str) -> None:
        self.state, self._dirty = state, True

    # What the keys do

    def action_pause(self) -> None:
        """Stop painting, or go on."""
        self._paused = not self._paused
        self._paint_head()
        self._dirty = True

    def action_keys(self) -> None:
        """Show them."""
        self.push_screen(Keys())

    def action_find(self) -> None:
        """Ask for a text."""
        self._field.display = True
        self._field.focus()

    def action_everything(self) -> None:
        """Forget the text."""
        self._field.value = ""
        self._found("")

    def on_input_changed(self, event: Input.Changed) -> None:
        """Look for it while it is written."""
        self._wanted, self._dirty = event.value.strip(), True

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Keep it."""
        self._found(event.value.strip())

    def _found(self, wanted: str) -> None:
        self._wanted, self._dirty = wanted, True
        self._field.display = False
        self._body.focus()

    def action_go(self, place: int) -> None:
        """To a section."""
        self._sections[place - 1].scroll_visible(top=True, animate=False, force=True)

    # How it is painted

    def on_resize(self, event: events.Resize) -> None:
        """In a terminal that is too small it says so."""
        small = event.size.width < SMALLEST[0] or event.size.height < SMALLEST[1]
        for widget in (self._line, self._head, self._body, self._foot):
            widget.display = not small
        self._small.display = small
        needs = f"viiwork top needs {SMALLEST[0]} columns and {SMALLEST[1]} lines"
        self._small.update(Content(f"{needs}; this terminal has {event.size.width} and {event.size.height}"))
        self._dirty = True

    def tick(self) -> None:
        """Paint what has changed; while requests are under way their seconds do."""
        now = self._monotonic()
        if self._paused or not (self._dirty or self.picture.flights(now)):
            return
        self._dirty = False
        self._paint_head()
        width = self.size.width - 1  # the bar that shows where one is
        found = sections(self.picture, now, width, self._wanted)
        for place, (widget, section) in enumerate(zip(self._sections, found, strict=True), start=1):
            title = [Piece(f"{place} {section.title}", "title")]
            widget.update(_content([title, *section.lines]))

    def _paint_head(self) -> None:
        state = "paused" if self._paused else self.state
        state += f"; rows with {self._wanted!r}" if self._wanted else ""
        left = f"viiwork top  {self._address}  "
        state = cut(state, max(10, self.size.width - cells(left)))
        meaning: Meaning = "good" if state.startswith("live") else "warn"
        self._line.update(_content([[Piece(left, "name"), Piece(state, meaning)]]))
        self._head.update(Content(cut(head(self.picture), self.size.width)))


def _content(lines: Sequence[Line]) -> Content:
    """As it is: no text is read as markup."""
    parts: list[tuple[str, str]] = []
    for number, line in enumerate(lines):
        parts += [("\n", "")] if number else []
        parts += [(one.text, _STYLES[one.meaning]) for one in line]
    return Content.assemble(*parts)

"""Prompts: questions on a terminal, one at a time. They work over ssh and in a terminal of 40 columns."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import click
import questionary

from viiwork_core.errors import ViiworkError
from viiwork_core.observe.events import plain

T = TypeVar("T")

NARROWEST: Final = 20
_BESIDE: Final = 6
"""Columns that a list of choices takes beside them."""

BACK: Final = "back"
"""The answer that leads to the question before."""

_BACK: Final = -1
"""Its place in a list of choices, where it stands last."""

_YES: Final = ("y", "yes")
_NO: Final = ("n", "no")

Check = Callable[[str], str]
"""What is wrong with a text, in a sentence; empty: nothing."""


class Cancelled(Exception):
    """The person left: Ctrl-C, Ctrl-D, or the terminal is gone."""


class Back(Exception):
    """The person wants the question before."""


def has_terminal() -> bool:
    """Whether somebody can be asked."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def width() -> int:
    """Of the terminal now."""
    return max(NARROWEST, shutil.get_terminal_size((80, 24)).columns)


class Prompts:
    """Asks. All methods raise Cancelled, and Back for an answer of `back`, also behind what is proposed."""

    def text(self, question: str, default: str = "", check: Check = lambda _: "") -> str:
        """One line. What `check` says of it is told, and it is asked again, until it says nothing."""
        return _until_well(lambda before: questionary.text(question, default=before, qmark=""), default, check)

    def secret(self, question: str, check: Check = lambda _: "") -> str:
        """The same of a line that is not shown."""
        return _until_well(lambda _: questionary.password(question, qmark=""), "", check)

    def choose(self, question: str, choices: Sequence[tuple[str, T]], default: int = 0) -> T:
        """One of several: by arrows and Enter."""
        made = [questionary.Choice(_short(title), value=index) for index, (title, _) in enumerate(choices)]
        made.append(_back())
        index = int(_ask(questionary.select(question, made, default=made[default], qmark="", instruction=" ")))
        if index == _BACK:
            raise Back
        return choices[index][1]

    def tick(self, question: str, choices: Sequence[tuple[str, T]]) -> list[T]:
        """Any of several, all of them to begin with: by space and Enter."""
        made = [
            questionary.Choice(_short(title), value=index, checked=True) for index, (title, _) in enumerate(choices)
        ]
        made.append(_back())
        ticked = _ask(questionary.checkbox(question, made, qmark="", instruction="(space, Enter)"))
        if _BACK in ticked:
            raise Back
        return [choices[int(index)][1] for index in ticked]

    def agree(self, question: str, *, default: bool) -> bool:
        """Yes or no, or their first letters; nothing: the default."""
        asked = f"{question} ({'Y/n' if default else 'y/N'})"
        said = _until_well(lambda _: questionary.text(asked, qmark=""), "", _yes_or_no).strip().lower()
        return said in _YES if said else default


def _back() -> questionary.Choice:
    return questionary.Choice(BACK.capitalize(), value=_BACK)


def _yes_or_no(text: str) -> str:
    return "" if text.strip().lower() in ("", *_YES, *_NO) else f"write yes, no or {BACK}"


def _ask(question: questionary.Question) -> Any:
    try:
        return question.unsafe_ask()
    except (KeyboardInterrupt, EOFError, OSError) as error:
        raise Cancelled from error


def _until_well(ask: Callable[[str], questionary.Question], text: str, check: Check) -> str:
    """Not by questionary's own validation: it shows one line, and cuts what is wider than the terminal."""
    while True:
        proposed, text = text, str(_ask(ask(text)))
        if text.strip() in (BACK, proposed + BACK):
            raise Back
        said = check(text)
        if not said:
            return text
        say(said, indent="  ")


def _short(title: str) -> str:
    """A list of choices cuts what is too long without a sign."""
    room = width() - _BESIDE
    title = plain(title)
    return title if len(title) <= room else title[: room - 2] + ".."


def as_check(read: Callable[[str], object]) -> Check:
    """What `read` says when it raises, with the remedy."""

    def check(text: str) -> str:
        try:
            read(text)
        except ViiworkError as error:
            return f"{error.message}; {error.remedy}" if error.remedy else error.message
        except ValueError as error:
            return str(error)
        return ""

    return check


def say(text: str = "", *, indent: str = "") -> None:
    """Lines for whoever reads along, wrapped where the terminal ends. Longer words stay whole, to be copied.

    What a terminal would obey is taken out: names of files and nodes are anybody's.
    """
    for line in text.splitlines() or [""]:
        wrapped = textwrap.wrap(
            plain(line),
            width(),
            initial_indent=indent,
            subsequent_indent=indent + "  ",
            break_long_words=False,
            break_on_hyphens=False,
        )
        click.echo("\n".join(wrapped) if wrapped else "")

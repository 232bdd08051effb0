"""Going back in a dialogue: it is held anew from its first question, with all answers of before but the newest.

So no question needs to know which one comes before it, and what followed from an answer that is taken back is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar, cast

from viiwork_core.cli.prompts import Back, Check, Prompts, say

T = TypeVar("T")

HIDDEN: Final = "***"


class Replay(Prompts):
    """Prompts that remember. All methods raise Cancelled, and Back, after which `again` must be called."""

    def __init__(self, prompts: Prompts) -> None:
        self._prompts = prompts
        self._given: list[tuple[str, Any]] = []
        """Each question with its answer, in their order."""

        self._next = 0
        """Which of them is given next."""

    def again(self) -> None:
        """The dialogue begins anew, and is to ask the question before the last one."""
        del self._given[-1:]
        self._next = 0

    def text(self, question: str, default: str = "", check: Check = lambda _: "") -> str:
        """As of Prompts."""
        return self._answer(
            question, lambda: self._prompts.text(question, default, check), lambda text: not check(text), str
        )

    def secret(self, question: str, check: Check = lambda _: "") -> str:
        """As of Prompts."""
        return self._answer(
            question, lambda: self._prompts.secret(question, check), lambda text: not check(text), lambda _: HIDDEN
        )

    def choose(self, question: str, choices: Sequence[tuple[str, T]], default: int = 0) -> T:
        """As of Prompts."""
        return self._answer(
            question,
            lambda: self._prompts.choose(question, choices, default),
            lambda value: bool(_titles([value], choices)),
            lambda value: _titles([value], choices)[0],
        )

    def tick(self, question: str, choices: Sequence[tuple[str, T]]) -> list[T]:
        """As of Prompts."""
        return self._answer(
            question,
            lambda: self._prompts.tick(question, choices),
            lambda values: len(_titles(values, choices)) == len(values),
            lambda values: ", ".join(_titles(values, choices)),
        )

    def agree(self, question: str, *, default: bool) -> bool:
        """As of Prompts."""
        return self._answer(
            question,
            lambda: self._prompts.agree(question, default=default),
            lambda _: True,
            lambda yes: "yes" if yes else "no",
        )

    def _answer(self, question: str, ask: Callable[[], T], fits: Callable[[T], bool], shown: Callable[[T], str]) -> T:
        """What was answered when this question was asked at this place, if it still fits; else the person is asked."""
        answer: Any
        asked, answer = self._given[self._next] if self._next < len(self._given) else ("", None)
        if asked == question and fits(answer):
            say(f"{question} {shown(answer)}")
        else:
            del self._given[self._next :]
            answer = self._asked(ask)
            self._given.append((question, answer))
        self._next += 1
        return cast(T, answer)

    def _asked(self, ask: Callable[[], T]) -> T:
        while True:
            try:
                return ask()
            except Back:
                if self._given:
                    raise
                say("There is no question before this one.", indent="  ")


def _titles(values: Sequence[T], choices: Sequence[tuple[str, T]]) -> list[str]:
    """How the values are called among the choices; those that are not among them are left out."""
    return [title for title, one in choices if one in values]

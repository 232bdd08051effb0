"""Going back to an earlier question: what is asked again, and what is answered as before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import pytest

from viiwork_core.cli.prompts import BACK, Back, Check, Prompts
from viiwork_core.cli.replay import HIDDEN, Replay

T = TypeVar("T")


class Person(Prompts):
    """Gives these answers in their order, and notes what was asked. One of `back` goes back."""

    def __init__(self, *answers: str | bool | list[str]) -> None:
        self.answers = list(answers)
        self.asked = list[str]()

    def _next(self, question: str) -> str | bool | list[str]:
        self.asked.append(question)
        answer = self.answers.pop(0)
        if answer == BACK:
            raise Back
        return answer

    def text(self, question: str, default: str = "", check: Check = lambda _: "") -> str:
        return str(self._next(question))

    def secret(self, question: str, check: Check = lambda _: "") -> str:
        return str(self._next(question))

    def choose(self, question: str, choices: Sequence[tuple[str, T]], default: int = 0) -> T:
        return dict(choices)[str(self._next(question))]

    def tick(self, question: str, choices: Sequence[tuple[str, T]]) -> list[T]:
        ticked = self._next(question)
        assert isinstance(ticked, list)
        return [value for title, value in choices if title in ticked]

    def agree(self, question: str, *, default: bool) -> bool:
        return bool(self._next(question))


def held(person: Person, dialogue: Callable[[Prompts], T]) -> T:
    """The dialogue to its end, as often as the person goes back."""
    replay = Replay(person)
    while True:
        try:
            return dialogue(replay)
        except Back:
            replay.again()


def every_kind(ask: Prompts) -> tuple[object, ...]:
    return (
        ask.text("Folder:"),
        ask.tick("Which?", [("one", 1), ("two", 2)]),
        ask.choose("Mesh:", [("Join", "join"), ("Open", "open")]),
        ask.secret("Code:"),
        ask.agree("Sure?", default=False),
        ask.text("Name:"),
    )


QUESTIONS = ["Folder:", "Which?", "Mesh:", "Code:", "Sure?", "Name:"]


def test_without_a_step_back_each_question_is_asked_once() -> None:
    person = Person("/m", ["two"], "Join", "hush", True, "attic")
    assert held(person, every_kind) == ("/m", [2], "join", "hush", True, "attic")
    assert person.asked == QUESTIONS


def test_a_step_back_asks_the_question_before_and_no_other(capsys: pytest.CaptureFixture[str]) -> None:
    person = Person("/m", ["two"], "Join", "hush", True, BACK, False, "attic")
    assert held(person, every_kind) == ("/m", [2], "join", "hush", False, "attic")
    assert person.asked == [*QUESTIONS, "Sure?", "Name:"]
    shown = capsys.readouterr().out.splitlines()
    assert shown == ["Folder: /m", "Which? two", "Mesh: Join", f"Code: {HIDDEN}"]


def test_as_many_steps_as_there_are_questions() -> None:
    person = Person("/m", ["two"], "Join", BACK, BACK, BACK, "/n", ["one"], "Open", "hush", True, "attic")
    assert held(person, every_kind) == ("/n", [1], "open", "hush", True, "attic")
    assert person.asked[:7] == ["Folder:", "Which?", "Mesh:", "Code:", "Mesh:", "Which?", "Folder:"]


def test_there_is_nothing_before_the_first_question(capsys: pytest.CaptureFixture[str]) -> None:
    assert held(Person(BACK, "/m"), lambda ask: ask.text("Folder:")) == "/m"
    assert capsys.readouterr().out.strip() == "There is no question before this one."


def test_another_answer_may_lead_to_other_questions() -> None:
    def branching(ask: Prompts) -> tuple[str, ...]:
        mode = ask.choose("Mesh:", [("Join", "join"), ("Open", "open")])
        return (mode, ask.secret("Code:") if mode == "join" else "", ask.text("Name:"))

    person = Person("Join", "hush", BACK, BACK, "Open", "attic")
    assert held(person, branching) == ("open", "", "attic")
    assert person.asked == ["Mesh:", "Code:", "Name:", "Code:", "Mesh:", "Name:"]


def test_an_answer_that_fits_no_more_is_asked_for() -> None:
    offered = [[("one", 1), ("two", 2)], [("two", 2)]]

    def changing(ask: Prompts) -> tuple[list[int], str]:
        choices = offered.pop(0)
        return ask.tick("Which?", choices), ask.text("Name:")

    def going_back(ask: Prompts) -> tuple[list[int], str, str]:
        return *changing(ask), ask.text("Address:")

    person = Person(["one"], "attic", BACK, ["two"], "cellar", "here")
    assert held(person, going_back) == ([2], "cellar", "here")
    assert person.asked == ["Which?", "Name:", "Address:", "Which?", "Name:", "Address:"]


def test_a_text_that_the_check_refuses_now_is_asked_for() -> None:
    taken = set[str]()

    def named(ask: Prompts) -> str:
        name = ask.text("Name:", check=lambda text: "is taken" if text in taken else "")
        ask.text("Address:")
        taken.add(name)
        return name + ask.text("Group:")

    person = Person("a", "x", BACK, "b", "x", "g")
    assert held(person, named) == "bg"

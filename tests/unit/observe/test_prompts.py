"""The prompt history: bounded in number and in bytes, and short in lists."""

from __future__ import annotations

from viiwork_core.observe.prompts import LISTED, LONGEST_LISTED, Prompt, PromptHistory


def prompt(rid: str, text: str | None = None, output: str | None = None) -> Prompt:
    return Prompt(rid, 0, "m", 200, 5, prompt=text, output=output)


def rids(history: PromptHistory) -> list[str]:
    return [one.rid for one in history.newest()]


def test_the_oldest_goes_first() -> None:
    history = PromptHistory(2)
    for rid in "abc":
        history.add(prompt(rid))
    assert rids(history) == ["c", "b"]
    assert history.find("a") is None


def test_texts_are_bounded_together() -> None:
    history = PromptHistory(100, most_bytes=10_000)
    for rid in "abc":
        history.add(prompt(rid, "x" * 2_000, "y" * 2_000))
    assert rids(history) == ["c", "b"]
    history.add(prompt("large", "ä" * 50_000))
    assert rids(history) == [], "one that is too large for all of it is not kept, and takes the rest with it"
    history.add(prompt("d"))
    assert rids(history) == ["d"]


def test_of_two_with_one_id_the_last_is_kept_and_counted_once() -> None:
    history = PromptHistory(100, most_bytes=5_000)
    for text in ("first", "second"):
        history.add(prompt("a", text * 400))
    assert [one.prompt for one in history.newest()] == [
        "second" * 400 if len("second" * 400) <= LONGEST_LISTED else "…" + ("second" * 400)[-LONGEST_LISTED:]
    ]
    history.add(prompt("b", "x" * 2_000))
    assert rids(history) == ["b", "a"]


def test_a_list_has_the_newest_with_the_ends_of_requests_and_the_beginnings_of_answers() -> None:
    history = PromptHistory(1_000)
    history.add(prompt("long", "a" * 5_000 + "end", "start" + "b" * 5_000))
    listed, whole = history.newest()[0], history.find("long")
    assert whole is not None
    assert (len(whole.prompt or ""), len(whole.output or "")) == (5_003, 5_005)
    assert listed.prompt is not None
    assert listed.output is not None
    assert (listed.prompt[:1], listed.prompt[-3:], len(listed.prompt)) == ("…", "end", LONGEST_LISTED + 1)
    assert (listed.output[:5], listed.output[-1:], len(listed.output)) == ("start", "…", LONGEST_LISTED + 1)
    for number in range(LISTED + 50):
        history.add(prompt(str(number)))
    assert len(history.newest()) == LISTED

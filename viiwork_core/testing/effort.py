"""What a call does, counted instead of timed: steps of the interpreter, comparisons of ids, calls to the outside."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")

_OUTSIDE = frozenset({"time", "io", "_io", "posix", "nt", "_socket", "select", "_ssl", "_sqlite3"})
"""Modules written in C whose calls read a clock, or a file, or wait."""


class TooMuch(AssertionError):
    """The call was ended, since it went over its budget."""


class Effort:
    """Counts while one call runs. Whoever traced before, such as a debugger, is put back afterwards."""

    def __init__(self, budget: int | None = None) -> None:
        self.count = 0
        self._budget = budget

    def id(self, text: str) -> str:
        """A string that counts as it is compared or hashed."""
        effort = self

        class Counted(str):
            __slots__ = ()

            def __eq__(self, other: object) -> bool:
                effort.note()
                return str.__eq__(self, other)

            def __lt__(self, other: str) -> bool:
                effort.note()
                return str.__lt__(self, other)

            def __hash__(self) -> int:
                effort.note()
                return str.__hash__(self)

        return Counted(text)

    def note(self) -> None:
        """One more. Raises TooMuch."""
        self.count += 1
        if self._budget is not None and self.count > self._budget:
            raise TooMuch

    def of(self, call: Callable[[], T]) -> T:
        """What `call` returns; what it did is counted."""
        before = sys.gettrace()
        sys.settrace(self._trace)
        try:
            return call()
        finally:
            sys.settrace(before)

    def _trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        del argument
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode":
            self.note()
        return self._trace


def outside_calls(call: Callable[[], object]) -> list[str]:
    """Names of the functions that `call` reached and that read a clock, touch a file or a socket, or print."""
    seen: set[str] = set()

    def note(frame: FrameType, event: str, function: Any) -> None:
        del frame
        if event == "c_call":
            module = getattr(function, "__module__", None) or type(getattr(function, "__self__", None)).__module__
            name = getattr(function, "__name__", "")
            if (module in _OUTSIDE and name != "fspath") or (
                module == "builtins" and name in {"print", "input", "open"}
            ):
                seen.add(f"{module}.{name}")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(before)
    return sorted(seen)

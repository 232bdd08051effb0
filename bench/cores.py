"""Who runs on which core: the program under test has one for itself, the load and the backend have the others."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True)
class Cores:
    """None: nothing is pinned, because the system cannot or there is one core only."""

    tested: int | None
    rest: frozenset[int]

    def __str__(self) -> str:
        if self.tested is None:
            return "nothing is pinned to a core here, so the figures are those of programs that disturb each other"
        others = ", ".join(map(str, sorted(self.rest)))
        return f"each program under test runs alone on core {self.tested}, the load and the backend on {others}"


def divide() -> Cores:
    """The cores that this process may use, divided."""
    if sys.platform == "linux" and len(found := sorted(os.sched_getaffinity(0))) > 1:
        return Cores(found[0], frozenset(found[1:]))
    return Cores(None, frozenset())


@contextmanager
def only(cores: frozenset[int]) -> Iterator[None]:
    """What is started within runs on these cores; none: anywhere."""
    if sys.platform != "linux" or not cores:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)

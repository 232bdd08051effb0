"""What the kits are made of: numbered clauses, and findings where one is broken."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

import anyio

CLAUSE_LIMIT = 120.0

C = TypeVar("C")


@dataclass(frozen=True)
class Clause(Generic[C]):
    """One rule of a contract. `check` raises when the rule is broken; an AssertionError's text is the problem."""

    number: int
    rule: str
    check: Callable[[C], Awaitable[None]]


@dataclass(frozen=True)
class Finding:
    """A clause that an engine broke."""

    clause: int
    rule: str
    problem: str


def require(condition: object, problem: str) -> None:
    """Raise AssertionError with `problem` unless `condition`."""
    if not condition:
        raise AssertionError(problem)


@contextmanager
def blaming(what: str) -> Iterator[None]:
    """Turn whatever a plugin raises inside into an AssertionError that says of `what`."""
    try:
        yield
    except Exception as error:
        raise AssertionError(f"{what}: {error!r}") from error


async def judge(clause: Clause[C], case: C, *, limit: float = CLAUSE_LIMIT) -> list[Finding]:
    """Check one clause: an empty list, or what is wrong. Whatever the plugin raises is a finding, never an error."""
    problem = f"not done within {limit:g} s"
    with anyio.move_on_after(limit):
        try:
            await clause.check(case)
        except AssertionError as error:
            problem = str(error)
        except Exception as error:  # noqa: BLE001  # judging foreign code: each failure of it is a result
            problem = f"raised {error!r}"
        else:
            return []
    return [Finding(clause.number, clause.rule, problem)]

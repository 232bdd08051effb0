"""What the kits are made of: numbered clauses, a verdict on each, and breaches where one is broken."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

import anyio

CLAUSE_LIMIT = 120.0

Judgement = Literal["pass", "fail", "not checked"]

C = TypeVar("C")


@dataclass(frozen=True)
class Clause(Generic[C]):
    """One rule of a contract. `check` raises when the rule is broken; an AssertionError's text is the problem."""

    number: int
    rule: str
    check: Callable[[C], Awaitable[None]]


@dataclass(frozen=True)
class Breach:
    """A clause that a plugin broke."""

    clause: int
    rule: str
    problem: str


@dataclass(frozen=True)
class Verdict:
    """What became of one clause."""

    clause: int
    rule: str
    outcome: Judgement
    problem: str = ""
    """What is wrong, or why it was not checked."""


def require(condition: object, problem: str) -> None:
    """Raise AssertionError with `problem` unless `condition`."""
    if not condition:
        raise AssertionError(problem)


@contextmanager
def blaming(what: str) -> Iterator[None]:
    """Turn whatever a plugin raises inside into an AssertionError that says of `what`."""
    try:
        yield
    except (Exception, SystemExit) as error:
        raise AssertionError(f"{what}: {error!r}") from error


async def verdict(clause: Clause[C], case: C, *, limit: float = CLAUSE_LIMIT) -> Verdict:
    """Check one clause, for `limit` seconds at most. Whatever the plugin raises is a verdict, never an error."""
    problem = f"not done within {limit:g} s"
    with anyio.move_on_after(limit):
        try:
            await clause.check(case)
        except AssertionError as error:
            problem = str(error) or "an assertion without words"
        except (Exception, SystemExit) as error:  # noqa: BLE001  # judging foreign code: each failure of it is a result
            problem = f"raised {error!r}"
        else:
            return Verdict(clause.number, clause.rule, "pass")
    return Verdict(clause.number, clause.rule, "fail", problem)


def unchecked(clause: Clause[C], why: str) -> Verdict:
    """The verdict on a clause that could not be looked at."""
    return Verdict(clause.number, clause.rule, "not checked", why)


def breaches(verdicts: Sequence[Verdict]) -> list[Breach]:
    """What is wrong."""
    return [Breach(one.clause, one.rule, one.problem) for one in verdicts if one.outcome == "fail"]


async def judge(clause: Clause[C], case: C, *, limit: float = CLAUSE_LIMIT) -> list[Breach]:
    """Check one clause: an empty list, or what is wrong."""
    return breaches([await verdict(clause, case, limit=limit)])

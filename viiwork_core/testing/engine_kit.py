"""Does an engine plugin keep the contract? Numbered clauses, each a plain async function over an EngineCase.

    case = EngineCase(engine=MyEngine, options=MyOptions(...), spec=spec, context=kit_context(folder))
    assert not await check_engine(case)

Clauses 1 to 8, 22, 23, 26 and 27 need no process. For the others the kit starts the engine once, for real, so the
case's spec must name a model that loads here; with two slots or more all clauses have something to look at. For an
engine that attaches, a server must run at the first of its addresses.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace

from viiwork_core.testing.ability_clauses import STARTED_ABILITIES, UNSTARTED_ABILITIES
from viiwork_core.testing.clauses import Breach, Clause, Verdict, breaches, judge, unchecked, verdict
from viiwork_core.testing.engine_case import EngineCase
from viiwork_core.testing.servers import attached, kit_context, launched, running
from viiwork_core.testing.static_clauses import STATIC_CLAUSES
from viiwork_core.testing.wire_clauses import WIRE_CLAUSES

__all__ = [
    "ENGINE_CLAUSES",
    "Breach",
    "Clause",
    "EngineCase",
    "Verdict",
    "check_engine",
    "examine_engine",
    "judge",
    "kit_context",
    "running",
]

LIVE_LIMIT = 900.0


async def starts(case: EngineCase) -> None:
    """Start the engine and end it again."""
    async with live(case):
        pass


@asynccontextmanager
async def live(case: EngineCase) -> AsyncIterator[EngineCase]:
    """The case with a running engine. Raises NotReady."""
    async with case.opened() as engine:
        if case.attaches:
            yield replace(case, address=await attached(engine, ready_within=case.ready_within))
            return
        async with launched(engine, case.spec, ready_within=case.ready_within, upstream=case.upstream) as process:
            yield replace(case, spec=process.spec, address=process.address, pid=process.child.pid)


STARTS = Clause(9, "what launch says starts, or what it attaches to is there, and becomes ready", starts)
UNSTARTED: tuple[Clause[EngineCase], ...] = (*STATIC_CLAUSES, *UNSTARTED_ABILITIES)
STARTED: tuple[Clause[EngineCase], ...] = (*WIRE_CLAUSES, *STARTED_ABILITIES)
NEED_A_LAUNCH = frozenset({3, 4, 23})
"""Clauses that ask `launch` for a model that can be loaded, though nothing is started."""

ENGINE_CLAUSES: tuple[Clause[EngineCase], ...] = tuple(
    sorted((*UNSTARTED, STARTS, *STARTED), key=lambda clause: clause.number)
)


async def examine_engine(case: EngineCase, *, left_out: Mapping[int, str] | None = None) -> list[Verdict]:
    """A verdict on each clause, in the clauses' order. Starts the engine once.

    When it does not start, clause 9 says so, and what needs it is not checked; neither are the clauses in `left_out`,
    which says why. Without clause 9 nothing is started.
    """
    excused = dict(left_out or {})
    verdicts = [await verdict(clause, case) for clause in UNSTARTED if clause.number not in excused]

    async def check_live(case: EngineCase) -> None:
        async with live(case) as started:
            verdicts.extend([await verdict(clause, started) for clause in STARTED if clause.number not in excused])

    if STARTS.number not in excused:
        verdicts.append(await verdict(replace(STARTS, check=check_live), case, limit=LIVE_LIMIT))
    seen = {one.clause for one in verdicts}
    first = excused.get(STARTS.number, f"clause {STARTS.number} comes first")
    rest = [unchecked(one, excused.get(one.number, first)) for one in ENGINE_CLAUSES if one.number not in seen]
    return sorted(verdicts + rest, key=lambda one: one.clause)


async def check_engine(case: EngineCase) -> list[Breach]:
    """Check all clauses and return what is wrong, in the clauses' order."""
    return breaches(await examine_engine(case))

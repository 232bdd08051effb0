"""Does an engine plugin keep the contract? Numbered clauses, each a plain async function over an EngineCase.

    case = EngineCase(engine=MyEngine, options=MyOptions(...), spec=spec, context=kit_context(folder))
    assert not await check_engine(case)

Clauses 1 to 8 need no process. For the others the kit starts the engine once, for real, so the case's spec must name a
model that loads here; with two slots or more all clauses have something to look at. For an engine that attaches, a
server must run at the first of its addresses.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from viiwork_core.testing.clauses import Clause, Finding, judge
from viiwork_core.testing.engine_case import EngineCase
from viiwork_core.testing.servers import attached, kit_context, launched, running
from viiwork_core.testing.static_clauses import STATIC_CLAUSES
from viiwork_core.testing.wire_clauses import WIRE_CLAUSES

__all__ = ["ENGINE_CLAUSES", "Clause", "EngineCase", "Finding", "check_engine", "kit_context", "running"]

LIVE_LIMIT = 900.0


async def starts(case: EngineCase) -> None:
    """Start the engine and end it again."""
    async with case.opened() as engine, running(engine, case.spec, ready_within=case.ready_within):
        pass


@asynccontextmanager
async def _live(case: EngineCase) -> AsyncIterator[EngineCase]:
    """The case with a running engine."""
    async with case.opened() as engine:
        if case.attaches:
            yield replace(case, address=await attached(engine, ready_within=case.ready_within))
            return
        async with launched(engine, case.spec, ready_within=case.ready_within) as process:
            yield replace(case, spec=process.spec, address=process.address, pid=process.child.pid)


STARTS = Clause(9, "what launch says starts, or what it attaches to is there, and becomes ready", starts)
ENGINE_CLAUSES: tuple[Clause[EngineCase], ...] = (*STATIC_CLAUSES, STARTS, *WIRE_CLAUSES)


async def check_engine(case: EngineCase) -> list[Finding]:
    """Check all clauses and return what is wrong, in the clauses' order. Starts the engine once.

    When it does not start, that is the finding, and what needs it is not checked.
    """
    findings = [one for clause in STATIC_CLAUSES for one in await judge(clause, case)]

    async def check_live(case: EngineCase) -> None:
        async with _live(case) as live:
            for clause in WIRE_CLAUSES:
                findings.extend(await judge(clause, live))

    started = await judge(replace(STARTS, check=check_live), case, limit=LIVE_LIMIT)
    return sorted(findings + started, key=lambda finding: finding.clause)

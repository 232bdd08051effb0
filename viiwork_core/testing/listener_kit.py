"""Does a listener keep the contract? Numbered clauses, each a plain async function over a ListenerCase.

    case = ListenerCase(MyListener, MyOptions(...), kit_context(folder))
    assert not await check_listener(case)

The events are made up and the same each time. A listener that sends them elsewhere needs options that name a stand-in.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

import anyio
from pydantic import ValidationError

from viiwork_core.contracts.context import Context
from viiwork_core.contracts.listener import EventType, Listener, NodeEvent
from viiwork_core.contracts.options import PluginOptions
from viiwork_core.errors import ViiworkError
from viiwork_core.registry.registry import NAME
from viiwork_core.testing.clauses import Breach, Clause, Verdict, blaming, breaches, judge, require, verdict
from viiwork_core.testing.odd_options import odd_blocks, refuses_unknown_keys
from viiwork_core.testing.servers import kit_context

__all__ = [
    "LISTENER_CLAUSES",
    "Breach",
    "Clause",
    "ListenerCase",
    "Verdict",
    "check_listener",
    "examine_listener",
    "judge",
    "kit_context",
]

TAKE_S = 10.0
ODD = ("", "qwen → qwen/0 done (1.2s)", "a" * 300, "模型 <b>&amp;</b> %s {0} $HOME '; drop", "[red]x[/]")


@dataclass(frozen=True)
class ListenerCase:
    """One listener class with the options to try it with."""

    listener: type[Listener]
    options: PluginOptions
    context: Context

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Listener]:
        """A fresh one, open for the length of the block."""
        async with self.listener(self.options, self.context) as listener:
            yield listener


def events(types: AbstractSet[EventType]) -> list[NodeEvent]:
    """One of each type and message, with and without a request's id."""
    made = [(kind, message) for kind in sorted(types) for message in ODD]
    return [
        NodeEvent("kit", 1.8e9 + number, kind, message, number, f"r-{number}" if kind is EventType.REQUEST else None)
        for number, (kind, message) in enumerate(made, start=1)
    ]


async def is_named(case: ListenerCase) -> None:
    require(NAME.fullmatch(str(getattr(case.listener, "name", ""))), "its name is no lowercase word")


async def says_what_it_is_told_of(case: ListenerCase) -> None:
    types = getattr(case.listener, "types", None)
    known = isinstance(types, AbstractSet) and bool(types) and all(isinstance(one, EventType) for one in types)
    require(known, f"types is {types!r}, and not a set of EventTypes with something in it")


async def bad_options_are_refused_politely(case: ListenerCase) -> None:
    refuses_unknown_keys(case.listener.Options, case.options)
    for what, block in odd_blocks(case.listener.Options, case.options):
        with blaming(f"{what}: neither a ValidationError nor a ViiworkError"), suppress(ValidationError, ViiworkError):
            case.listener(case.listener.Options.model_validate(block), case.context)


async def opens_and_closes_again_and_again(case: ListenerCase) -> None:
    for _ in range(3):
        async with case.opened() as listener:
            require(isinstance(listener, Listener), "`async with` gives something else than the listener")


async def takes_every_event_in_time(case: ListenerCase) -> None:
    async with case.opened() as listener:
        for event in events(case.listener.types):
            with (
                blaming(f"on raised over a {event.type} event, {event.message!r}"),
                anyio.move_on_after(TAKE_S) as scope,
            ):
                await listener.on(event)
            require(not scope.cancelled_caught, f"on took over {TAKE_S:g} s for a {event.type} event")


async def lets_itself_be_cancelled(case: ListenerCase) -> None:
    async with case.opened() as listener:
        for event in events(case.listener.types):
            with anyio.CancelScope() as scope:
                scope.cancel()
                await listener.on(event)
        # And is of use afterwards: a deadline that has passed is no end.
        with blaming("on raised after one that was cancelled"):
            await listener.on(events(case.listener.types)[0])


LISTENER_CLAUSES: Sequence[Clause[ListenerCase]] = (
    Clause(1, "the name is a lowercase word", is_named),
    Clause(2, "types is a set of EventTypes with something in it", says_what_it_is_told_of),
    Clause(3, "options that make no sense are a ValidationError or a ViiworkError", bad_options_are_refused_politely),
    Clause(4, "it opens and closes, again and again", opens_and_closes_again_and_again),
    Clause(5, "on takes every event of its types, whatever stands in it, within 10 s", takes_every_event_in_time),
    Clause(6, "on lets itself be cancelled, and takes the next event", lets_itself_be_cancelled),
)


async def examine_listener(case: ListenerCase) -> list[Verdict]:
    """A verdict on each clause, in the clauses' order."""
    return [await verdict(clause, case) for clause in LISTENER_CLAUSES]


async def check_listener(case: ListenerCase) -> list[Breach]:
    """Check all clauses and return what is wrong, in the clauses' order."""
    return breaches(await examine_listener(case))

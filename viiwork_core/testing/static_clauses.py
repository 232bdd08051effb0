"""The engine kit's clauses that need no running engine."""

from __future__ import annotations

import re
from collections.abc import Awaitable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from viiwork_core.contracts.capabilities import Attaches, wire_of
from viiwork_core.contracts.engine import Address, Spec
from viiwork_core.contracts.options import PluginOptions
from viiwork_core.engines.listener import free_port
from viiwork_core.errors import EngineRefused, EngineUnreachable, ViiworkError
from viiwork_core.testing.clauses import Clause, blaming, require
from viiwork_core.testing.engine_case import EngineCase, check_load, check_probe, prepare, prepared_launch
from viiwork_core.testing.odd_options import odd_blocks, refuses_unknown_keys
from viiwork_core.testing.odd_servers import ODD_ANSWERS, odd_server

T = TypeVar("T")

OPERATOR_ARGS = ("--operators-own", "argument")


async def name_is_a_word(case: EngineCase) -> None:
    name = case.engine.name
    require(re.fullmatch(r"[a-z][a-z0-9_-]*", name), f"{name!r} is not a lowercase word")
    require(issubclass(case.engine.Options, PluginOptions), "Options does not derive from PluginOptions")


async def endpoints_are_for_clients(case: EngineCase) -> None:
    endpoints = case.wire.endpoints
    control = {path for path in endpoints if re.match(r"/(slots|props|health|metrics|status|load|unload|config)", path)}
    require(not control, f"control paths among the endpoints: {sorted(control)}")
    require(all(path.startswith("/") for path in endpoints), f"an endpoint is no path: {sorted(endpoints)}")
    require("/v1/chat/completions" in endpoints, "the kit talks through /v1/chat/completions, which is not declared")


async def operator_args_come_last(case: EngineCase) -> None:
    spec = replace(case.spec, port=free_port(), args=OPERATOR_ARGS)
    launch = await prepared_launch(case, spec)
    if case.attaches:
        require(launch is None, f"its servers run already, and it launches {launch}")
        return
    require(launch is not None and launch.argv[-2:] == OPERATOR_ARGS, f"argv does not end with the args: {launch}")


async def launch_is_pure(case: EngineCase) -> None:
    spec = replace(case.spec, port=free_port())
    async with case.opened() as engine:
        await prepare(engine, spec)
        require(engine.launch(spec) == engine.launch(spec), "two launches of one spec differ")
        require(wire_of(engine) == wire_of(engine), "two Wires of one instance differ")
        if isinstance(engine, Attaches):
            known = engine.addresses()
            require(known and known == engine.addresses(), f"no address, or another when asked again: {known}")
            require(len(set(known)) == len(known), f"an address is there twice: {known}")


async def bad_options_are_refused_politely(case: EngineCase) -> None:
    good = case.options.model_dump()
    refuses_unknown_keys(case.engine.Options, case.options)
    for what, block in odd_blocks(case.engine.Options, case.options):
        await _survives(block, case.spec, case, what)
    await _survives(good, replace(case.spec, path=None), case, "no path")
    await _survives(good, replace(case.spec, path=Path("/no/such/model")), case, "a path that does not exist")


async def _survives(block: dict[str, Any], spec: Spec, case: EngineCase, what: str) -> None:
    """Options and launch may refuse, in the words that the core understands, and nothing else."""
    context = replace(case.context, run_command=_no_command)
    with blaming(f"{what}: neither a ValidationError nor a ViiworkError"), suppress(ValidationError, ViiworkError):
        options = case.engine.Options.model_validate(block)
        await prepared_launch(replace(case, options=options, context=context), replace(spec, port=free_port()))


async def _no_command(argv: object) -> Any:
    raise EngineRefused(f"no command is run here: {argv}")


async def closed_port_is_unreachable(case: EngineCase) -> None:
    address = Address("127.0.0.1", free_port())
    async with case.opened() as engine:
        probe = await _unless_missed(engine.probe(address))
        require(probe is None, f"probe of a closed port returned {probe}")
        load = await _unless_missed(engine.load(case.spec, address))
        # Who has no figure to give need not ask for one.
        require(load is None or load.busy is None, f"load of a closed port returned {load}")


async def _unless_missed(call: Awaitable[T]) -> T | None:
    try:
        return await call
    except EngineUnreachable:
        return None


async def any_answer_is_a_good_probe(case: EngineCase) -> None:
    for name, status, content in ODD_ANSWERS:
        async with odd_server(status, content) as address, case.opened() as engine:
            with blaming(f"probe of a server that answers {name}"):
                probe = await engine.probe(address)
        check_probe(probe, name)
        require(not (probe.ready and status != 200), f"ready, though the server answers {name}")


async def load_never_guesses(case: EngineCase) -> None:
    for name, status, content in ODD_ANSWERS:
        async with odd_server(status, content) as address, case.opened() as engine:
            with blaming(f"load of a server that answers {name}"), suppress(EngineRefused, EngineUnreachable):
                check_load(await engine.load(case.spec, address), "its figures")


STATIC_CLAUSES: tuple[Clause[EngineCase], ...] = (
    Clause(1, "the name is a lowercase word and Options derives from PluginOptions", name_is_a_word),
    Clause(2, "endpoints are client paths, never control paths", endpoints_are_for_clients),
    Clause(3, "the operator's arguments come last; who attaches launches nothing", operator_args_come_last),
    Clause(4, "launch is pure, and so are an instance's addresses and Wire", launch_is_pure),
    Clause(5, "bad options are refused with ValidationError or ConfigError", bad_options_are_refused_politely),
    Clause(6, "a closed port is EngineUnreachable, unless there is nothing to ask", closed_port_is_unreachable),
    Clause(7, "whatever a server answers, probe returns, and an error status is not ready", any_answer_is_a_good_probe),
    Clause(8, "load is refused rather than guessed, and no figure is negative", load_never_guesses),
)

"""Measure the node beside two other relays: python -m bench [--quick].

Prints a table and, as its last line, RESULT with the figures as JSON. docs/performance.md says what they mean.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import psutil
import uvloop

from bench import load, programs
from bench.cores import Cores, divide, only
from bench.dummy_backend import EVENTS
from bench.figures import BARE, BASELINE, NODE, Rest, Round, result, table
from bench.programs import MODEL, SLOTS, Program

CONNECTIONS = SLOTS
WARM_UP_S = 0.5


@dataclass(frozen=True)
class Size:
    """How much is measured."""

    rounds: int
    seconds: float
    """Of each program, kind of answer and round."""

    most: int
    """Answers in that time, at most."""

    singles: int
    """Answers one at a time, in each round."""

    idle_s: float


FULL = Size(rounds=5, seconds=3.0, most=30_000, singles=500, idle_s=30.0)
QUICK = Size(rounds=3, seconds=1.0, most=10_000, singles=200, idle_s=5.0)


@dataclass(frozen=True)
class Field:
    """All that takes part."""

    backend: Program
    relays: Mapping[str, Program]

    async def rates(self, seconds: float, most: int, *, events: int) -> tuple[dict[str, float], dict[str, float]]:
        """Answers per second of each relay, one after the other, and the CPU microseconds of each for one answer."""
        rates, spent = {}, {}
        for name, program in self.relays.items():
            what, before = load.ask(program.port, MODEL, events=events), cpu_s(program)
            pace = await load.pace(what, connections=CONNECTIONS, seconds=seconds, most=most)
            rates[name] = pace.per_s
            spent[name] = (cpu_s(program) - before) * 1e6 / pace.answers
        return rates, spent

    async def single(self, program: Program, count: int) -> float:
        """Median seconds of an answer on one connection."""
        return median(await load.durations(load.ask(program.port, MODEL), count))

    async def round(self, size: Size) -> Round:
        """One turn of all."""
        rps, rps_cpu_us = await self.rates(size.seconds, size.most, events=0)
        streams, streams_cpu_us = await self.rates(size.seconds, size.most, events=EVENTS)
        return Round(
            rps=rps,
            streams=streams,
            rps_cpu_us=rps_cpu_us,
            streams_cpu_us=streams_cpu_us,
            direct_s=await self.single(self.backend, size.singles),
            through_s=await self.single(self.relays[NODE], size.singles),
        )


async def measure(field: Field, size: Size) -> list[Round]:
    """All rounds, after a short one that does not count."""
    for events in (0, EVENTS):
        await field.rates(WARM_UP_S, size.most, events=events)
    rounds = []
    for number in range(1, size.rounds + 1):
        rounds.append(await field.round(size))
        tell(f"round {number} of {size.rounds}: {', '.join(f'{k} {v:.0f}/s' for k, v in rounds[-1].rps.items())}")
    return rounds


def cpu_s(program: Program) -> float:
    """Seconds of processor that a program has taken since it was started, all its threads, the system's part too."""
    times = psutil.Process(program.pid).cpu_times()
    return times.user + times.system


def at_rest(node: Program, seconds: float) -> Rest:
    """What the node holds after the load, and what it costs while nobody asks."""
    before, began = cpu_s(node), time.monotonic()
    time.sleep(seconds)
    spent, took = cpu_s(node) - before, time.monotonic() - began
    rss = psutil.Process(node.pid).memory_info().rss
    return Rest(rss_mb=rss / (1 << 20), idle_cpu=max(0.0, 100 * spent / took))


def tell(line: str) -> None:
    """To whoever watches, at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def run(size: Size, cores: Cores) -> tuple[list[Round], Rest]:
    """Start everything, measure, and end everything."""
    with tempfile.TemporaryDirectory(prefix="viiwork-bench-") as name, ExitStack() as stack:
        folder = Path(name)
        stack.enter_context(only(cores.rest))
        backend = stack.enter_context(programs.backend(folder, cores))
        node = stack.enter_context(programs.node(backend, folder, cores))
        scripts = {BARE: "bare_relay.py", BASELINE: "baseline_relay.py"}
        others = {
            one: stack.enter_context(programs.relay(one, script, backend, folder, cores))
            for one, script in scripts.items()
        }
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            rounds = runner.run(measure(Field(backend, {NODE: node, **others}), size))
        tell(f"the node rests for {size.idle_s:g} s")
        return rounds, at_rest(node, size.idle_s)


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="bench", description="Measure the node beside two other relays.")
    parser.add_argument("--quick", action="store_true", help="under a minute, and less to be trusted")
    size = QUICK if parser.parse_args().quick else FULL
    cores = divide()
    tell(f"{CONNECTIONS} connections, {EVENTS} events a stream; {cores}")
    rounds, rest = run(size, cores)
    tell(table(rounds))
    tell(f"RESULT {json.dumps(result(rounds, rest))}")


if __name__ == "__main__":
    main()

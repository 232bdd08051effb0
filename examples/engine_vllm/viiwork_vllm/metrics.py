"""What vLLM's /metrics say of its load, and when they cannot be believed."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass

from viiwork_core import Address, EngineRefused

QUIET_S = 3.0
"""An engine at work finishes a step, which writes a token or reads a part of a prompt, well within this time."""


@dataclass(frozen=True, slots=True)
class Metrics:
    """Requests, over all engines of the server."""

    running: int
    waiting: int
    steps: int | None
    """Steps that the engine has ever finished; None: this version does not count them."""


def read_metrics(text: str) -> Metrics:
    """Read Prometheus text. Raises EngineRefused when a figure is missing or impossible."""
    running, waiting = _sum(text, "num_requests_running"), _sum(text, "num_requests_waiting")
    if running is None or waiting is None:
        raise EngineRefused("vLLM's /metrics do not say how many requests run and wait")
    return Metrics(running, waiting, _sum(text, "iteration_tokens_total_count"))


def _sum(text: str, name: str) -> int | None:
    """One line for each engine, labelled or not; None: no line."""
    values = re.findall(rf"^vllm:{name}(?:{{.*}})? (\S+)", text, re.MULTILINE)
    return sum(_count(name, value) for value in values) if values else None


def _count(name: str, value: str) -> int:
    # From a million on, Prometheus text has exponents: 1e+06.
    if re.fullmatch(r"\d{1,15}(\.0)?|\d(\.\d{1,15})?e\+(0\d|1[0-5])", value) and float(value).is_integer():
        return int(float(value))
    raise EngineRefused(f"vLLM's /metrics have no usable {name}: {value[:40]}")


class Pulse:
    """Whether an engine that says it is busy does anything.

    vLLM's gauges are set at the end of a step. When all requests are cancelled there is no further step, and the gauges
    go on telling of them until the next request comes.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._seen: dict[Address, tuple[int, float]] = {}

    def beats(self, address: Address, metrics: Metrics) -> bool:
        """Whether the figures can be believed. False: no step for so long that they are left over."""
        if metrics.steps is None or not (metrics.running or metrics.waiting):
            self._seen.pop(address, None)
            return True
        steps, since = self._seen.setdefault(address, (metrics.steps, self._now()))
        if steps != metrics.steps:
            self._seen[address] = (metrics.steps, self._now())
            return True
        return self._now() - since < QUIET_S

"""What the server counts, and its text for Prometheus."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping

OUTCOMES = ("finished", "refused", "left", "failed")
"""Of a request: answered to its end, refused with a reason, its client left, or something broke."""

TRANSFERS = ("save", "restore")


class Figures:
    """Counts since the start. Any thread may add."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: defaultdict[str, float] = defaultdict(int)

    def add(self, name: str, amount: float = 1) -> None:
        with self._lock:
            self._counts[name] += amount

    def text(self, gauges: Mapping[str, float]) -> str:
        """Everything in Prometheus' text format; `gauges`: what is true now."""
        with self._lock:
            counts = dict(self._counts)
        lines = [*_counters(counts)]
        for name, value in gauges.items():
            lines += [f"# TYPE viiwork_mlx_{name} gauge", f"viiwork_mlx_{name} {_number(value)}"]
        return "\n".join(lines) + "\n"


def _counters(counts: Mapping[str, float]) -> Iterator[str]:
    yield "# TYPE viiwork_mlx_requests_total counter"
    for outcome in OUTCOMES:
        yield f'viiwork_mlx_requests_total{{outcome="{outcome}"}} {counts.get(outcome, 0)}'
    for name in ("prompt_tokens", "cached_tokens", "generated_tokens", "prompt_seconds", "generation_seconds"):
        yield f"# TYPE viiwork_mlx_{name}_total counter"
        yield f"viiwork_mlx_{name}_total {_number(counts.get(name, 0))}"
    for name in ("transfers", "transfer_bytes", "transfer_seconds"):
        yield f"# TYPE viiwork_mlx_{name}_total counter"
        for kind in TRANSFERS:
            yield f'viiwork_mlx_{name}_total{{kind="{kind}"}} {_number(counts.get(f"{kind}_{name}", 0))}'


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.6f}"

"""Families of metrics: a name with its help, its labels and its values, as Prometheus' library writes them out."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Final, Literal

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric

OWN: Final = "This node's own: "
PEERS: Final = "This node's view of its peers: "

Labels = tuple[str, ...]


class Buckets:
    """One histogram."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def add(self, value: float) -> None:
        """Count a value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def cumulative(self) -> tuple[list[tuple[str, float]], float]:
        """(upper bound, how many are at most that) for each bucket, and the sum."""
        total, found = 0, []
        for bound, count in zip((*map(str, map(float, self._bounds)), "+Inf"), self._counts, strict=True):
            total += count
            found.append((bound, float(total)))
        return found, self._sum


def family(
    kind: Literal["counter", "gauge"], name: str, help_: str, labels: Labels, values: Iterable[tuple[Labels, float]]
) -> Metric:
    """Counts or gauges of one name. `help_` begins with whose they are: OWN or PEERS."""
    made = (
        CounterMetricFamily(name, help_, labels=labels)
        if kind == "counter"
        else GaugeMetricFamily(name, help_, labels=labels)
    )
    for of, value in values:
        made.add_metric(of, value)
    return made


def histogram(name: str, help_: str, labels: Labels, values: Iterable[tuple[Labels, Buckets]]) -> Metric:
    """Histograms of one name."""
    made = HistogramMetricFamily(name, help_, labels=labels)
    for of, buckets in values:
        cumulative, total = buckets.cumulative()
        made.add_metric(of, cumulative, total)
    return made

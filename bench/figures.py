"""From what was measured in each round to the figures of the RESULT line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from bench.dummy_backend import EVENTS

NODE, BARE, BASELINE = "node", "bare", "baseline"


@dataclass(frozen=True)
class Round:
    """One turn of every program. Rates are answers per second, by program, and CPU microseconds for one answer."""

    rps: Mapping[str, float]
    """Not streamed."""

    streams: Mapping[str, float]
    rps_cpu_us: Mapping[str, float]
    streams_cpu_us: Mapping[str, float]
    direct_s: float
    """Median duration of an answer of the backend itself, one at a time."""

    through_s: float
    """The same through the node."""


@dataclass(frozen=True)
class Rest:
    """The node after the load."""

    rss_mb: float
    """Resident MiB."""

    idle_cpu: float
    """Percent of a core while nobody asks."""


def result(rounds: Sequence[Round], rest: Rest) -> dict[str, object]:
    """The fields of the RESULT line. A ratio is taken within each round, and its median over them: what slows the
    machine down for a while then slows both sides."""
    streams = _medians([one.streams for one in rounds])
    return {
        "rps_ratio": round(_share([one.rps for one in rounds], BASELINE), 2),
        "events_per_s": round(streams[NODE] * EVENTS),
        "relay_share_rps": round(_share([one.rps for one in rounds], BARE), 3),
        "relay_share_streams": round(_share([one.streams for one in rounds], BARE), 3),
        "added_p50_ms": round(median(one.through_s - one.direct_s for one in rounds) * 1000, 3),
        "rss_mb": round(rest.rss_mb, 1),
        "idle_cpu": round(rest.idle_cpu, 2),
        "rps": {name: round(value, 1) for name, value in _medians([one.rps for one in rounds]).items()},
        "streams": {name: round(value, 1) for name, value in streams.items()},
        "cpu_us_per_request": _least([one.rps_cpu_us for one in rounds]),
        "cpu_us_per_stream": _least([one.streams_cpu_us for one in rounds]),
    }


def _least(spent: Sequence[Mapping[str, float]]) -> dict[str, int]:
    """Of all rounds: what else a machine does can only add, by taking the caches of its processor away."""
    return {name: round(min(one[name] for one in spent)) for name in spent[0]}


def _share(rates: Sequence[Mapping[str, float]], other: str) -> float:
    """The node over another program."""
    return median(rate[NODE] / rate[other] for rate in rates)


def _medians(rates: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: median(rate[name] for rate in rates) for name in rates[0]}


def table(rounds: Sequence[Round]) -> str:
    """The programs side by side, with the span over the rounds: a wide one tells of a machine that does more."""
    rows = [f"{'':10}{'requests/s':>12}{'span':>16}{'streams/s':>12}{'span':>16}{'events/s':>12}{'CPU us':>14}"]
    plain_us, stream_us = _least([one.rps_cpu_us for one in rounds]), _least([one.streams_cpu_us for one in rounds])
    for name in rounds[0].rps:
        plain, streamed = [one.rps[name] for one in rounds], [one.streams[name] for one in rounds]
        events = median(streamed) * EVENTS
        row = f"{name:10}{median(plain):12.0f}{_span(plain):>16}{median(streamed):12.0f}{_span(streamed):>16}"
        rows.append(f"{row}{events:12.0f}{f'{plain_us[name]}, {stream_us[name]}':>14}")
    return "\n".join(rows)


def _span(values: Sequence[float]) -> str:
    return f"{min(values):.0f}-{max(values):.0f}"

"""A chart of one run or two side by side, as SVG: the hits, and the distribution of the time to the first token."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from itertools import pairwise

from viiwork_core.simulation.figures import figures, quantile
from viiwork_core.simulation.run import Run

WIDTH, HEIGHT, MARGIN, TOP = 760, 400, 60, 60
COLOURS = ("#2b6cb0", "#c05621")
STEPS = 100

BARS = (("reused 80 %", "hit_80"), ("reused 90 %", "hit_90"), ("changed host", "moved_host"))


def chart(runs: Sequence[Run]) -> str:
    """An SVG document."""
    title = escape(f"{runs[0].scenario.name}: time to the first token, and shares of the turns")
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        'font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/><title>{title}</title>',
        f'<text x="{MARGIN}" y="24" font-size="15">{title}</text>',
        *(_legend(number, run) for number, run in enumerate(runs)),
        *_curves(runs),
        *(bar for number, run in enumerate(runs) for bar in _bars(number, run, len(runs))),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _legend(number: int, run: Run) -> str:
    x, label = MARGIN + 230 * number, escape(f"{run.policy}, names: {run.names.value}")
    return (
        f'<rect x="{x}" y="36" width="12" height="12" fill="{COLOURS[number % 2]}"/>'
        f'<text x="{x + 18}" y="47">{label}</text>'
    )


def _curves(runs: Sequence[Run]) -> list[str]:
    """Share of the turns (up) whose first token came within so many seconds (right), on a scale of powers of ten."""
    left, right, bottom = MARGIN, 470, HEIGHT - MARGIN
    decades = (0.1, 1, 10, 100, 1000)

    def x(seconds: float) -> float:
        place = 0.0
        for low, high in pairwise(decades):
            if seconds > low:
                place += (min(seconds, high) - low) / (high - low)
        return left + (right - left) * place / (len(decades) - 1)

    marks = [
        f'<text x="{x(value):.0f}" y="{bottom + 18}" text-anchor="middle">{value:g} s</text>'
        f'<line x1="{x(value):.0f}" x2="{x(value):.0f}" y1="{TOP}" y2="{bottom}" stroke="#ddd"/>'
        for value in decades
    ]
    lines = []
    for number, run in enumerate(runs):
        times = [turn.first_token_s for turn in run.turns]
        points = " ".join(
            f"{x(quantile(times, step / STEPS)):.1f},{bottom - (bottom - TOP) * step / STEPS:.1f}"
            for step in range(STEPS + 1)
        )
        lines.append(f'<polyline points="{points}" fill="none" stroke="{COLOURS[number % 2]}" stroke-width="2"/>')
    return [*marks, *lines]


def _bars(number: int, run: Run, runs: int) -> list[str]:
    values, bottom, drawn = figures(run).as_dict(), HEIGHT - MARGIN, []
    for place, (label, name) in enumerate(BARS):
        share = values[name]
        assert isinstance(share, float)
        width = 60 / runs
        x, height = 510 + 80 * place + width * number, (bottom - TOP) * share / 100
        drawn.append(
            f'<rect x="{x:.1f}" y="{bottom - height:.1f}" width="{width - 4:.1f}" height="{height:.1f}" '
            f'fill="{COLOURS[number % 2]}"/>'
            f'<text x="{x + width / 2 - 2:.1f}" y="{bottom - height - 4:.1f}" text-anchor="middle">{share:.0f}</text>'
        )
        if number == 0:
            drawn.append(f'<text x="{540 + 80 * place}" y="{bottom + 18}" text-anchor="middle">{label}</text>')
    return drawn

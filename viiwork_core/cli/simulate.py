"""viiwork simulate: what a routing policy would do, in virtual time."""

from __future__ import annotations

import json as jsonlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import click
import msgspec

from viiwork_core.contracts.policy import Policy
from viiwork_core.errors import ConfigError
from viiwork_core.registry.entry_points import load_plugins
from viiwork_core.simulation.chart import chart
from viiwork_core.simulation.figures import Figures, figures
from viiwork_core.simulation.run import Run
from viiwork_core.simulation.run import simulate as run_scenario
from viiwork_core.simulation.scenario import Names, Scenario, load, shipped
from viiwork_core.simulation.trace import RecordedAgent, agents, read

_ROWS = {
    "turns": "turns",
    "hit_80": "reused >= 80 % of the context before, %",
    "hit_90": "reused >= 90 %, %",
    "moved_host": "turns on another host than the one before, %",
    "moved_backend": "turns on another backend of the same host, %",
    "first_token_p50": "time to the first token, median, s",
    "first_token_p90": "  90 %, s",
    "first_token_p99": "  99 %, s",
    "moved_p50": "  of turns that changed host, median, s",
    "switched": "turns that changed host, their history kept",
    "switched_warm": "  of these warm: reused >= 90 % of the prompt, %",
    "switched_partly": "  of these partly warm: 30 to 90 %, %",
    "refused": "answers 429",
    "fairness": "fairness (1 = all agents got equally many turns)",
}


@click.command()
@click.argument("scenario", required=False)
@click.option("--policy", default="fastest", show_default=True, help="The policy: an installed plugin's name.")
@click.option("--vs", help="A second policy, beside the first.")
@click.option(
    "--names",
    type=click.Choice([name.value for name in Names]),
    default="chain",
    show_default=True,
    help="How conversations are recognised: by the chain of their messages, by a header, or not at all.",
)
@click.option("--vs-names", type=click.Choice([name.value for name in Names]), help="The same for the second run.")
@click.option("--trace", type=click.Path(path_type=Path), help="Replay the sessions of a recorded trace (JSONL).")
@click.option("--agents", "count", type=click.IntRange(1, 10_000), help="Another number of agents than the scenario's.")
@click.option("--seed", type=int, help="Another seed than the scenario's.")
@click.option("--json", is_flag=True, help="Print JSON instead of a table.")
@click.option("--chart", "chart_to", type=click.Path(path_type=Path), help="Write a chart (SVG) there.")
def simulate(
    scenario: str | None,
    policy: str,
    vs: str | None,
    names: str,
    vs_names: str | None,
    trace: Path | None,
    count: int | None,
    seed: int | None,
    json: bool,
    chart_to: Path | None,
) -> None:
    """Run SCENARIO under a routing policy: a shipped one, or a file. Without one: list what is shipped."""
    if scenario is None:
        click.echo("\n".join(shipped()))
        return
    if chart_to is not None and chart_to.suffix != ".svg":
        raise ConfigError(f"chart {chart_to}: charts are SVG", remedy="name a file that ends in .svg")
    setting = _setting(scenario, count, seed)
    recorded = _recorded(trace)
    pairs = [(policy, names)]
    if vs is not None or vs_names is not None:
        pairs.append((vs or policy, vs_names or names))
    made = [_policy(name) for name, _ in pairs]
    runs = [run_scenario(setting, make, Names(how), recorded()) for make, (_, how) in zip(made, pairs, strict=True)]
    results = [figures(run) for run in runs]
    click.echo(jsonlib.dumps([one.as_dict() for one in results], indent=2) if json else _table(results))
    if chart_to is not None:
        _draw(runs, chart_to)


def _policy(name: str) -> Callable[[], Policy]:
    cls = load_plugins(os.environ).policy(name)
    return lambda: cls(cls.Options())


def _setting(name: str, count: int | None, seed: int | None) -> Scenario:
    setting = load(name)
    if count is not None:
        setting = msgspec.structs.replace(setting, agents=msgspec.structs.replace(setting.agents, count=count))
    return setting if seed is None else msgspec.structs.replace(setting, seed=seed)


def _recorded(trace: Path | None) -> Callable[[], Sequence[RecordedAgent]]:
    """Makes the sessions of a trace, anew for each run; none without a trace."""
    if trace is None:
        return tuple
    records = read(trace)
    if not records:
        raise ConfigError(
            f"trace {trace}: no request is recorded in it", remedy="let a node record some: routing.trace"
        )
    return lambda: agents(records)


def _draw(runs: Sequence[Run], path: Path) -> None:
    try:
        path.write_text(chart(runs), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"chart {path}: {error}", remedy="name a file that can be written") from error


def _table(results: list[Figures]) -> str:
    head = ["", *(f"{one.policy} ({one.names})" for one in results)]
    rows = [[label, *(_shown(one.as_dict()[name]) for one in results)] for name, label in _ROWS.items()]
    widths = [max(len(row[place]) for row in [head, *rows]) for place in range(len(head))]
    lines = (
        "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        )
        for row in [head, *rows]
    )
    return "\n".join(line.rstrip() for line in lines)


def _shown(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.2f}" if isinstance(value, float) else str(value)

"""Scenarios and traces from files: what is wrong is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from viiwork_core.cli.main import cli
from viiwork_core.errors import ConfigError
from viiwork_core.simulation.scenario import load, shipped
from viiwork_core.simulation.trace import agents, read

HOST = {"name": "a", "backends": 1, "slots": 2, "prefill_tps": 1000, "decode_tps": 50}
AGENTS = {"count": 2, "entries": ["a"], "opening": 100, "growth": 50, "answer": 20}
AGENTS |= {"think_s": 1, "limit": 1000, "compacted": 100}
SCENARIO: dict[str, Any] = {"name": "x", "notes": [], "minutes": 1, "hosts": [HOST], "agents": AGENTS}


def write(folder: Path, value: object) -> str:
    path = folder / "scenario.json"
    path.write_text(json.dumps(value))
    return str(path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"minutes": 0}, "minutes"),
        ({"hosts": []}, "hosts"),
        ({"hosts": [HOST, HOST]}, "two have one name"),
        ({"agents": {**AGENTS, "entries": ["b"]}}, "no host is called b"),
        ({"agents": {**AGENTS, "count": 10**9}}, "agents.count"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_a_bad_scenario_names_what_is_wrong(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load(write(tmp_path, {**SCENARIO, **change}))


def test_an_unknown_scenario_names_the_shipped_ones() -> None:
    with pytest.raises(ConfigError) as caught:
        load("nonsense")
    assert caught.value.remedy is not None
    assert all(name in caught.value.remedy for name in shipped())


def test_a_bad_line_of_a_trace_is_named(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    good = {"at": 1, "session": "s", "prompt_tokens": 10, "answer_tokens": 5, "seconds": 1, "model": "m"}
    path.write_text(json.dumps(good) + "\n\n" + json.dumps({**good, "at": 0, "session": "t"}) + "\n")
    assert [agent.begins_at for agent in agents(read(path))] == [0, 1]
    path.write_text(json.dumps(good) + "\n{}\n")
    with pytest.raises(ConfigError, match="line 2"):
        read(path)
    with pytest.raises(ConfigError, match=r"no\.jsonl"):
        read(tmp_path / "no.jsonl")


def test_the_command_prints_a_table_json_and_a_chart(tmp_path: Path) -> None:
    scenario, drawn = write(tmp_path, SCENARIO), tmp_path / "chart.svg"
    runner = CliRunner()
    table = runner.invoke(cli, ["simulate", scenario, "--vs", "round_robin", "--vs-names", "none"])
    assert table.exit_code == 0, table.output
    assert "fastest (chain)" in table.output
    assert "round_robin (none)" in table.output
    told = runner.invoke(cli, ["simulate", scenario, "--json", "--chart", str(drawn), "--seed", "3"])
    assert json.loads(told.output)[0]["policy"] == "fastest"
    assert drawn.read_text().startswith("<svg")
    assert runner.invoke(cli, ["simulate"]).output.split() == list(shipped())
    assert runner.invoke(cli, ["simulate", scenario, "--policy", "nonsense"]).exit_code == 1


def test_as_many_agents_as_one_likes(tmp_path: Path) -> None:
    runner, scenario = CliRunner(), write(tmp_path, SCENARIO)
    turns = [
        json.loads(runner.invoke(cli, ["simulate", scenario, "--json", *more]).output)[0]["turns"]
        for more in ([], ["--agents", "1"])
    ]
    assert 0 < turns[1] < turns[0]
    assert runner.invoke(cli, ["simulate", scenario, "--agents", "0"]).exit_code == 2


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--chart", "run.png"], "charts are SVG"),
        (["--chart", "nowhere/run.svg"], "No such file"),
        (["--trace", "empty.jsonl"], "no request is recorded in it"),
    ],
)
def test_what_cannot_be_read_or_drawn_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty.jsonl").touch()
    done = CliRunner().invoke(cli, ["simulate", write(tmp_path, SCENARIO), *options])
    assert done.exit_code == 1
    assert said in done.output
    assert "remedy: " in done.output

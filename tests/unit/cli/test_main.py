"""The command's root, plugin list and config check."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import click
import pytest
import structlog
from click.testing import CliRunner, Result

from viiwork_core import API_MAJOR, API_MINOR
from viiwork_core.cli import main, serve
from viiwork_core.config import paths
from viiwork_core.config.schema import Config
from viiwork_core.errors import ConfigError
from viiwork_core.registry.registry import Registry


@pytest.fixture(autouse=True)
def _only_built_ins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("VIIWORK_PLUGINS", "")
    monkeypatch.setenv("HOME", str(tmp_path))


def run(*args: str) -> Result:
    return CliRunner().invoke(main.cli, args, prog_name="viiwork")


def test_version_names_the_plugin_api_too() -> None:
    result = run("--version")
    assert result.exit_code == 0
    assert result.output.startswith("viiwork 0.")
    assert result.output.endswith(f"(plugin API {API_MAJOR}.{API_MINOR})\n")


def test_the_list_of_commands_imports_none_of_them() -> None:
    code = (
        "import contextlib, sys\n"
        "from viiwork_core.cli.main import cli\n"
        "with contextlib.suppress(SystemExit): cli(['--help'])\n"
        "print(sorted(set(sys.modules) & {'asyncio', 'httpx', 'quart', 'viiwork_core.cli.status'}))"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output.splitlines()[-1] == "[]"
    listed = [line.split()[0] for line in output.partition("Commands:\n")[2].splitlines()[:-1]]
    assert listed == sorted(main.COMMANDS)  # each in one line of 80 columns


@pytest.mark.parametrize("name", sorted(main.COMMANDS))
def test_every_command_stands_where_the_table_says(name: str) -> None:
    command = main.Root().get_command(click.Context(main.cli), name)
    assert command is not None
    assert command.help


def test_a_shell_completes_commands_with_their_summaries() -> None:
    items = main.cli.shell_complete(click.Context(main.cli), "un")
    assert [(item.value, item.help) for item in items] == [
        ("undrain", "Take requests on this node again."),
        ("uninstall", "Remove what `viiwork init` wrote."),
    ]


def test_plugin_list_is_an_aligned_table() -> None:
    result = run("plugin", "list")
    assert result.exit_code == 0
    header, first, *_ = result.output.splitlines()
    assert header.split() == ["KIND", "NAME", "DISTRIBUTION", "VERSION", "API", "STATE", "REASON"]
    assert first.split()[0] in {"engine", "discovery", "policy"}
    assert first.index("viiwork") == header.index("DISTRIBUTION")


def test_plugin_list_as_json() -> None:
    rows = json.loads(run("plugin", "list", "--json").output)
    assert {
        "kind": "policy",
        "name": "least_busy",
        "distribution": "viiwork",
        "version": rows[0]["version"],
        "api": f"{API_MAJOR}.{API_MINOR}",
        "state": "loaded",
        "reason": None,
    } in rows
    assert all(row["state"] == "not chosen" for row in rows if row["distribution"] != "viiwork")


def test_config_check_sums_up_a_good_file(tmp_path: Path) -> None:
    file = tmp_path / "v.yaml"
    file.write_text("node: {name: box}\nmesh: {network: none}\npower: {}\n")
    result = run("config", "check", str(file))
    assert result.exit_code == 0
    assert result.stdout == "ok: node box, models: none, policy: fastest, discovery: none\n"
    assert result.stderr == "warning: power (line 3): not built yet, ignored\n"


def test_config_check_finds_the_file_that_a_node_would_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "viiwork.yaml"
    monkeypatch.setattr(paths, "config_files", lambda environ: (tmp_path / "none.yaml", file))
    file.write_text("node: {name: box}\nmesh: {network: none}\n")
    result = run("config", "check")
    assert result.exit_code == 0
    assert result.stdout == f"ok: {file}: node box, models: none, policy: fastest, discovery: none\n"
    file.write_text("routing: {policy: x}\n")
    assert "routing.policy (line 1)" in run("config", "check").stderr


def test_config_check_says_that_there_is_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nowhere = tmp_path / "none.yaml"
    monkeypatch.setattr(paths, "config_files", lambda environ: (nowhere,))
    result = run("config", "check")
    said, problem = result.stderr.splitlines()
    assert said == f"warning: no configuration in {nowhere}: the defaults are checked; `viiwork init` writes one"
    assert (result.exit_code, result.stdout) == (1, "")
    assert problem.startswith("mesh.network: is not set, and no discovery is installed"), "as for a node that starts so"


def test_config_check_prints_every_problem(tmp_path: Path) -> None:
    file = tmp_path / "v.yaml"
    file.write_text("mesh: {network: none}\nrouting: {policy: x}\nmodels: [{name: m, engine: acme, context: 1}]\n")
    result = run("config", "check", str(file))
    assert result.exit_code == 1
    assert result.stdout == ""
    assert [line.split(":")[0] for line in result.stderr.splitlines()] == [
        "routing.policy (line 2)",
        "models[0].engine (line 3)",
    ]


def test_config_check_of_a_missing_file(tmp_path: Path) -> None:
    result = run("config", "check", str(tmp_path / "none.yaml"))
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1] == "remedy: name a readable file"


@pytest.mark.parametrize("args", [["config", "docs"], ["nothing"], ["plugin", "list", "--wrong"]])
def test_wrong_usage_exits_with_2(args: list[str]) -> None:
    assert run(*args).exit_code == 2


def test_errors_raised_on_purpose_become_text_and_exit_1() -> None:
    @click.group(cls=main.Root, invoke_without_command=True)
    def failing() -> None:
        raise ConfigError("what is wrong", remedy="what to do")

    result = CliRunner().invoke(failing)
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", "what is wrong\nremedy: what to do\n")


def test_a_node_without_a_configuration_tells_where_one_was_looked_for() -> None:
    with structlog.testing.capture_logs() as logs:
        serve._warn(None, Config.model_validate({"node": {"name": "box"}}), Registry([]))
    (told,) = logs
    assert told["event"] == "no configuration file"
    assert told["looked_at"].endswith("viiwork/viiwork.yaml")
    assert "viiwork init" in told["remedy"]


@pytest.mark.parametrize(("api", "level"), [({}, "info"), ({"max_connections": 16384}, "warning")])
def test_fewer_connections_matter_where_they_were_asked_for(
    monkeypatch: pytest.MonkeyPatch, api: dict[str, int], level: str
) -> None:
    monkeypatch.setattr(serve, "allow_many_connections", lambda: 900)
    with structlog.testing.capture_logs() as logs:
        assert serve._most_connections(Config.model_validate({"api": api})) == 900
    (told,) = logs
    assert (told["event"], told["log_level"]) == ("fewer connections than api.max_connections", level)


def test_a_small_command_imports_no_server() -> None:
    code = (
        "import sys; from viiwork_core.cli.main import cli; cli(['plugin', 'list'], standalone_mode=False);"
        "sys.exit(sorted({'quart', 'hypercorn', 'aiohttp'} & set(sys.modules)) or 0)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (result.returncode, result.stderr) == (0, "")

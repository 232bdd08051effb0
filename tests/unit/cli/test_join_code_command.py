"""viiwork join-code, without a node that runs."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from viiwork_core.cli import main
from viiwork_core.config import paths
from viiwork_core.security.join_code import decode

SECRET = bytes(range(32))
TEXT = base64.b64encode(SECRET).decode()
MESH = {"network": "seeds", "advertise": "192.0.2.7", "bind_port": 7000}


def run(folder: Path, *args: str, environ: dict[str, str] | None = None, **mesh: Any) -> Result:
    file = folder / "viiwork.yaml"
    file.write_text(json.dumps({"node": {"state_dir": str(folder / "state")}, "mesh": {**MESH, **mesh}}))
    runner = CliRunner(env={"HOME": str(folder), "VIIWORK_PLUGINS": "", "VIIWORK_MESH_SECRET": None, **(environ or {})})
    return runner.invoke(main.cli, ["join-code", "--config", str(file), *args], prog_name="viiwork")


def test_the_code_alone_is_on_stdout(tmp_path: Path) -> None:
    result = run(tmp_path, environ={"VIIWORK_MESH_SECRET": TEXT})
    assert result.exit_code == 0, result.output
    (line,) = result.stdout.splitlines()
    assert (decode(line).address, decode(line).secret) == ("192.0.2.7:7000", SECRET)
    assert "secret" in result.stderr
    assert line not in result.stderr
    assert TEXT not in result.output


def test_the_secret_is_found_in_the_file_beside_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "viiwork.env").write_text(f"OTHER={TEXT}\n")
    result = run(tmp_path, secret_env="OTHER")
    assert decode(result.stdout).secret == SECRET


def test_an_open_mesh_has_a_code_without_one(tmp_path: Path) -> None:
    result = run(tmp_path, open=True)
    assert decode(result.stdout).secret is None
    assert "no secret" in result.stderr


def without_a_file(folder: Path, monkeypatch: pytest.MonkeyPatch, secret: str | None) -> Result:
    """On a machine where no configuration stands in the usual places."""
    monkeypatch.setattr(paths, "config_files", lambda environ: (folder / "none.yaml",))
    environ = {"HOME": str(folder), "VIIWORK_PLUGINS": "", "VIIWORK_MESH_SECRET": secret}
    return CliRunner(env=environ).invoke(main.cli, ["join-code", "--address", "192.0.2.7:7000"], prog_name="viiwork")


def test_that_there_is_no_configuration_is_told_before_any_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = without_a_file(tmp_path, monkeypatch, None)
    assert result.exit_code == 1
    what, remedy = result.stderr.splitlines()
    assert what == f"no configuration is found ({tmp_path / 'none.yaml'}): there is no mesh here to join"
    assert remedy == "remedy: run `viiwork init` first, or name the node's file: --config FILE"


def test_a_node_by_the_defaults_has_a_code_with_the_secret_of_its_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert decode(without_a_file(tmp_path, monkeypatch, TEXT).stdout).secret == SECRET


def test_as_json(tmp_path: Path) -> None:
    result = run(tmp_path, "--json", "--address", "[2001:DB8::7]:7946", open=True, name="lab")
    told = json.loads(result.stdout)
    assert told["address"] == decode(told["code"]).address == "[2001:db8::7]:7946"
    assert (told["secured"], told["mesh"]) == (False, "lab")
    assert "mesh.name: lab" in result.stderr


def test_an_address_of_this_machine_alone_is_told(tmp_path: Path) -> None:
    result = run(tmp_path, open=True, advertise="127.0.0.1")
    assert decode(result.stdout).address == "127.0.0.1:7000"
    assert "--address" in result.stderr


@pytest.mark.parametrize(
    ("mesh", "args", "environ", "told"),
    [
        pytest.param({"network": "none"}, (), {}, "in no mesh", id="no mesh"),
        pytest.param({}, (), {}, "VIIWORK_MESH_SECRET is not set", id="no secret"),
        pytest.param({}, (), {"VIIWORK_MESH_SECRET": "short"}, "base64 of exactly 32", id="a bad secret"),
        pytest.param({"open": True}, (), {"VIIWORK_MESH_SECRET": TEXT}, "either secured or open", id="both"),
        pytest.param({"open": True}, ("--address", "here"), {}, "no port", id="a bad address"),
        pytest.param({"open": True, "advertise": ""}, (), {}, "mesh.advertise", id="no address"),
    ],
)
def test_what_is_wrong_is_told_with_a_way_out(
    tmp_path: Path, mesh: dict[str, Any], args: tuple[str, ...], environ: dict[str, str], told: str
) -> None:
    result = run(tmp_path, *args, environ=environ, **mesh)
    assert result.exit_code == 1
    assert told in result.stderr
    assert "remedy: " in result.stderr
    assert result.stdout == ""

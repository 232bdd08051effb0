"""The LaunchAgent: a property list that launchd takes, without a secret, whose command line runs."""

from __future__ import annotations

import plistlib
import stat
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from viiwork_mlx.launch_agent import LaunchAgent, main, write

SECRET = "c2VjcmV0IHRoYXQgbm9ib2R5IHNoYWxsIHNlZSAhISE="


@pytest.fixture
def agent(tmp_path: Path) -> LaunchAgent:
    home = tmp_path / "a home & <more>"
    home.mkdir()
    environment = home / "environment"
    environment.touch(0o600)
    environment.write_text(f"VIIWORK_MESH_SECRET={SECRET}\n# a comment\nHOME_OF='two words'\n")
    return LaunchAgent(home / "bin" / "viiwork", home / "viiwork.yaml", environment, home / "Logs" / "v.log", home)


def test_it_is_a_property_list_with_the_paths(agent: LaunchAgent, tmp_path: Path) -> None:
    path = write(agent, tmp_path / "LaunchAgents")
    assert path == tmp_path / "LaunchAgents" / "fi.viiwork.node.plist"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    found = plistlib.loads(path.read_bytes())
    assert found["Label"] == "fi.viiwork.node"
    assert found["ProgramArguments"][3:] == [
        *(str(agent.environment), str(agent.program), "serve"),
        *("--config", str(agent.config), "--log-json"),
    ]
    assert found["StandardErrorPath"] == str(agent.log)
    assert found["KeepAlive"] == {"SuccessfulExit": False}
    assert (found["ProcessType"], found["RunAtLoad"], found["Umask"]) == ("Interactive", True, 0o077)
    assert agent.log.parent.is_dir()


def test_no_secret_stands_in_it_and_no_variables(agent: LaunchAgent) -> None:
    content = agent.render()
    assert SECRET.encode() not in content
    assert "EnvironmentVariables" not in plistlib.loads(content)


def test_its_command_line_gives_the_secret_to_the_program_only(agent: LaunchAgent, tmp_path: Path) -> None:
    agent.program.parent.mkdir()
    agent.program.write_text('#!/bin/sh\nprintf "%s|%s|%s|%s" "$VIIWORK_MESH_SECRET" "$HOME_OF" "$*" "$0"\n')
    agent.program.chmod(0o700)
    argv = plistlib.loads(agent.render())["ProgramArguments"]
    assert not any(SECRET in word for word in argv)
    output = subprocess.run(argv, capture_output=True, text=True, check=True, env={"PATH": "/usr/bin:/bin"}).stdout
    said = f"serve --config {agent.config} --log-json"
    assert output == f"{SECRET}|two words|{said}|{agent.program}"


def test_secrets_that_others_can_read_are_refused(agent: LaunchAgent, tmp_path: Path) -> None:
    agent.environment.chmod(0o644)
    with pytest.raises(ValueError, match=r"can be read by others; run: chmod 600"):
        write(agent, tmp_path)
    agent.environment.unlink()
    with pytest.raises(ValueError, match=r"No such file or directory; make it: install -m 600"):
        write(agent, tmp_path)
    assert not list(tmp_path.glob("*.plist"))


def test_a_path_that_launchd_would_not_find_is_refused(agent: LaunchAgent) -> None:
    with pytest.raises(ValueError, match=r"config: viiwork\.yaml is not absolute"):
        replace(agent, config=Path("viiwork.yaml")).render()


def test_the_command_writes_it_and_says_what_to_type(
    agent: LaunchAgent, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "agents"
    given = ["--environment", str(agent.environment), "--config", str(agent.config), "--log", str(agent.log)]
    assert main([*given, "--folder", str(folder)]) == 0
    path = folder / "fi.viiwork.node.plist"
    assert f"launchctl bootstrap gui/{agent.environment.stat().st_uid} '{path}'" in capsys.readouterr().out
    assert plistlib.loads(path.read_bytes())["ProgramArguments"][4].endswith("/viiwork")
    agent.environment.chmod(0o640)
    assert main([*given, "--folder", str(folder)]) == 1
    assert "chmod 600" in capsys.readouterr().err

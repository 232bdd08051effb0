"""What each service manager is given: checked by its own programs where they are here."""

from __future__ import annotations

import json
import os
import plistlib
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from viiwork_core.errors import ConfigError
from viiwork_core.setup.access import Access, outermost
from viiwork_core.setup.docker import Docker
from viiwork_core.setup.launch_agent import LaunchAgent
from viiwork_core.setup.locations import Locations
from viiwork_core.setup.process import BackgroundProcess
from viiwork_core.setup.service import Service, ServiceFailed, Subject, attempt, run
from viiwork_core.setup.services import SERVICES, available, service
from viiwork_core.setup.systemd import SystemUnit, UserUnit

SECRET = "c2VjcmV0IHRoYXQgbm9ib2R5IHNoYWxsIHNlZSAhISE="


@pytest.fixture
def subject(tmp_path: Path) -> Subject:
    """The node of a machine whose paths are not the easiest ones."""
    program = tmp_path / "100% of $HOME" / "viiwork"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    models = tmp_path / "my models"
    models.mkdir()
    return Subject(Locations.here({"HOME": "/home/somebody"}, uid=0), program, "nvidia", models)


def settings(text: str) -> Mapping[str, list[str]]:
    """Keys of a unit file, with all their values."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        if "=" in line and not line.startswith("#"):
            key, _, value = line.partition("=")
            found.setdefault(key, []).append(value)
    return found


def unit(subject: Subject) -> Mapping[str, list[str]]:
    return settings(SystemUnit(subject).files()[0].text)


# systemd


def test_the_unit_gives_the_secret_as_a_file_and_lets_requests_finish(subject: Subject) -> None:
    found = unit(replace(subject, grace_s=90.0))
    assert found["EnvironmentFile"] == ["-/etc/viiwork/viiwork.env"]
    assert found["TimeoutStopSec"] == ["240"]
    assert (found["KillMode"], found["Restart"], found["OOMPolicy"]) == (["mixed"], ["on-failure"], ["continue"])
    assert found["ExecReload"] == ["kill -HUP $MAINPID"]
    assert found["StateDirectory"] == ["viiwork"]
    assert found["LimitNOFILE"] == ["65536"]


def test_the_service_finds_the_engines_programs(subject: Subject) -> None:
    found = unit(replace(subject, programs=(Path("/opt/my engine/bin/serve"),)))
    assert f'"PATH=/opt/my engine/bin:{subject.program.parent}:/usr/local/bin:/usr/bin'.replace("%", "%%") in " ".join(
        found["Environment"]
    )


def test_the_unit_takes_away_what_a_node_does_not_need(subject: Subject) -> None:
    found = unit(subject)
    for key in ("NoNewPrivileges", "PrivateTmp", "ProtectKernelModules", "RestrictSUIDSGID", "LockPersonality"):
        assert found[key] == ["yes"], key
    assert (found["ProtectSystem"], found["CapabilityBoundingSet"]) == (["strict"], [""])


@pytest.mark.parametrize(
    ("vendor", "devices"),
    [("nvidia", ["char-nvidia* rw", "char-drm rw"]), ("amd", ["char-drm rw", "char-kfd rw"]), ("none", [])],
)
def test_only_the_cards_of_the_machine_can_be_opened(subject: Subject, vendor: str, devices: list[str]) -> None:
    found = unit(replace(subject, vendor=vendor))
    assert found["DevicePolicy"] == ["closed"]
    assert found.get("DeviceAllow", []) == devices
    others = SystemUnit(replace(subject, vendor=vendor)).files()[1:]
    assert any(file.path.name == "viiwork-nvidia.service" for file in others) == (vendor == "nvidia")


def test_a_state_folder_elsewhere_is_made_for_the_nodes_user(subject: Subject) -> None:
    found = unit(replace(subject, locations=replace(subject.locations, state=Path("/srv/my node"))))
    assert "StateDirectory" not in found
    assert found["ExecStartPre"][0].startswith("+install --directory ")
    assert found["ExecStartPre"][0].endswith(' "/srv/my node"')
    assert found["ReadWritePaths"] == ['-"/srv/my node"']


def test_paths_are_one_word_each_whatever_stands_in_them(subject: Subject) -> None:
    line = unit(subject)["ExecStart"][0]
    assert line.startswith(f'"{subject.program.parents[1]}/100%% of $HOME/viiwork" serve --config ')


def test_a_home_with_models_is_hidden_but_for_them() -> None:
    models = Path("/home/somebody/models")
    access = Access.to((models,), (Path("/opt/viiwork/bin/viiwork"),))
    assert access.in_homes == (models,)
    places = Locations.here({"HOME": "/home/somebody"}, uid=0)
    found = unit(Subject(places, Path("/opt/viiwork/bin/viiwork"), models=models))
    assert found["ProtectHome"] == ["tmpfs"]
    assert '"/home/somebody/models"' in found["BindReadOnlyPaths"][0]


def test_models_that_only_their_owner_can_read_decide_about_the_user(tmp_path: Path) -> None:
    closed = tmp_path / "models"
    closed.mkdir(mode=0o700)
    (closed / "a.bin").touch(0o600)
    mine = Path(f"/proc/{os.getpid()}").owner()
    access = Access.to((closed, closed / "a.bin"), ())
    assert (access.owner, access.closed) == (mine, closed)
    subject = Subject(Locations.here({}, uid=0), Path("/opt/viiwork"), models=closed)
    assert unit(subject)["User"] == [mine]
    assert [file.path.name for file in SystemUnit(subject).files()] == ["viiwork.service"]
    assert str(closed) in SystemUnit(subject).notes()[0]


def test_models_that_all_can_read_belong_to_nobody() -> None:
    # Of the system, whatever the folders of a test are closed to.
    access = Access.to((Path("/usr/bin"), Path(shutil.which("sh") or "/bin/sh")), ())
    assert (access.owner, access.closed) == (None, None)
    subject = Subject(Locations.here({}, uid=0), Path("/usr/bin/true"), models=Path("/usr/bin"))
    assert unit(subject)["User"] == ["viiwork"]
    account = SystemUnit(subject).files()[1]
    assert (account.path.name, account.text) == ("viiwork.conf", 'u viiwork - "viiwork node" /var/lib/viiwork\n')


def test_what_lies_in_something_that_is_shown_is_not_shown_again() -> None:
    assert outermost([Path("/a/b"), Path("/a"), Path("/ab"), Path("/a")]) == (Path("/a"), Path("/ab"))


def units(subject: Subject) -> Iterator[tuple[str, str]]:
    for kind in (SystemUnit, UserUnit):
        for file in kind(subject).files():
            if file.path.suffix == ".service":
                yield f"{kind.name}/{file.path.name}", file.text


@pytest.mark.parametrize("vendor", ["nvidia", "amd", "none"])
def test_systemd_finds_nothing_wrong_with_the_units(subject: Subject, tmp_path: Path, vendor: str) -> None:
    _needs("systemd-analyze")
    for name, text in units(replace(subject, vendor=vendor)):
        path = tmp_path / "units" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        done = attempt(("systemd-analyze", "verify", "--man=no", str(path)))
        assert (done.returncode, done.stdout) == (0, ""), name


def test_systemd_calls_the_unit_little_exposed(subject: Subject, tmp_path: Path) -> None:
    _needs("systemd-analyze")
    path = tmp_path / "viiwork.service"
    path.write_text(SystemUnit(subject).files()[0].text)
    done = attempt(("systemd-analyze", "security", "--offline=yes", str(path)))
    if "Unknown option" in done.stdout or "unrecognized" in done.stdout:
        pytest.skip("this systemd cannot look at a unit that is not loaded")
    exposure = re.search(r"Overall exposure level for viiwork\.service: ([\d.]+)", done.stdout)
    assert exposure, done.stdout
    # 10 is a service without any confinement; sshd has 9.6.
    assert float(exposure[1]) < 3.0, done.stdout


# launchd


def test_the_agent_is_a_property_list_that_stops_in_time(subject: Subject) -> None:
    file = LaunchAgent(subject).files()[0]
    found = plistlib.loads(file.text.encode())
    assert file.path.name == f"{found['Label']}.plist"
    assert file.mode == 0o600
    assert found["ProgramArguments"][3:] == [
        *(str(subject.locations.environment), str(subject.program), "serve"),
        *("--config", str(subject.locations.config), "--log-json"),
    ]
    assert (found["KeepAlive"], found["ExitTimeOut"]) == ({"SuccessfulExit": False}, 210)
    assert (found["ProcessType"], found["RunAtLoad"], found["Umask"]) == ("Interactive", True, 0o077)
    assert found["EnvironmentVariables"].keys() == {"PATH"}


@pytest.mark.parametrize("secured", [True, False])
def test_the_agents_command_line_gives_the_secret_to_the_program_only(tmp_path: Path, secured: bool) -> None:
    places = Locations.here({"HOME": str(tmp_path / "a home & <more>")}, base=tmp_path, uid=1000)
    program = tmp_path / "a home & <more>" / "viiwork"
    places.environment.parent.mkdir(parents=True)
    if secured:
        places.environment.write_text(f"VIIWORK_MESH_SECRET={SECRET}\n# a comment\nOTHER='two words'\n")
    program.write_text('#!/bin/sh\nprintf "%s|%s|%s" "$VIIWORK_MESH_SECRET" "$OTHER" "$*"\n')
    program.chmod(0o700)
    argv = plistlib.loads(LaunchAgent(Subject(places, program)).files()[0].text.encode())["ProgramArguments"]
    assert not any(SECRET in word for word in argv)
    output = subprocess.run(argv, capture_output=True, text=True, check=True, env={"PATH": "/usr/bin:/bin"}).stdout
    said = f"serve --config {places.config} --log-json"
    assert output == (f"{SECRET}|two words|{said}" if secured else f"||{said}")


# Docker


def compose(subject: Subject) -> dict[str, Any]:
    found = yaml.safe_load(Docker(subject).files()[0].text)
    assert isinstance(found, dict)
    node = found["services"]["viiwork"]
    assert isinstance(node, dict)
    return node


def test_the_compose_file_sees_the_host_and_stops_in_time(subject: Subject) -> None:
    node = compose(subject)
    assert (node["network_mode"], node["pid"], node["ipc"]) == ("host", "host", "host")
    assert (node["restart"], node["stop_grace_period"]) == ("unless-stopped", "210s")
    assert node["env_file"] == [{"path": "/etc/viiwork/viiwork.env", "required": False}]
    assert node["command"] == ["viiwork", "serve", "--config", "/etc/viiwork/viiwork.yaml"]
    assert (node["cap_drop"], node["read_only"]) == (["ALL"], True)
    assert node["build"] == {"context": "./image"}


def test_the_container_has_the_configurations_folder_the_state_and_the_models_only(subject: Subject) -> None:
    elsewhere = Path("/srv/more/one.bin")
    program = Path("/usr/local/bin/engine")
    assert subject.models is not None
    node = compose(replace(subject, reads=(subject.models / "a.bin", elsewhere), programs=(program,)))
    mounts = {mount["source"]: mount["read_only"] for mount in node["volumes"]}
    assert all(mount["source"] == mount["target"] and mount["type"] == "bind" for mount in node["volumes"])
    assert mounts == {
        "/etc/viiwork": True,
        "/var/lib/viiwork": False,
        str(subject.models): True,
        str(elsewhere): True,
    }


def test_the_container_gets_the_cards(subject: Subject) -> None:
    (cards,) = compose(subject)["deploy"]["resources"]["reservations"]["devices"]
    assert cards == {"driver": "cdi", "device_ids": ["nvidia.com/gpu=all"], "capabilities": ["gpu"]}
    amd = compose(replace(subject, vendor="amd"))
    assert amd["devices"] == ["/dev/kfd", "/dev/dri"]
    assert amd["group_add"]
    assert "devices" not in compose(replace(subject, vendor="none"))


def test_a_dollar_in_a_path_is_no_variable_of_the_compose_file(subject: Subject) -> None:
    node = compose(replace(subject, models=Path("/srv/$models: new")))
    assert node["volumes"][-1]["source"] == "/srv/$$models: new"


@pytest.mark.parametrize("vendor", ["nvidia", "amd", "none"])
def test_compose_itself_takes_the_file(subject: Subject, tmp_path: Path, vendor: str) -> None:
    if attempt(("docker", "compose", "version")).returncode:
        pytest.skip("docker compose is not here")
    for file in Docker(replace(subject, vendor=vendor)).files():
        path = tmp_path / "docker" / file.path.relative_to(Docker(subject).folder)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(file.text)
    done = attempt(("docker", "compose", "--file", str(tmp_path / "docker" / "compose.yaml"), "config", "--quiet"))
    assert done.returncode == 0, done.stdout


def test_an_engines_recipe_takes_the_place_of_the_nodes_own(subject: Subject) -> None:
    own = Docker(subject)
    assert "FROM python:" in own.files()[1].text
    assert any("holds the node alone" in line for line in own.notes())
    engines = Docker(replace(subject, dockerfile="FROM engine\n"))
    assert engines.files()[1].text == "FROM engine\n"
    assert not any("holds the node alone" in line for line in engines.notes())


# All of them


@pytest.mark.parametrize("kind", SERVICES)
def test_each_is_found_by_its_name_and_says_what_it_does(kind: type[Service], subject: Subject) -> None:
    made = service(kind.name, subject)
    assert type(made) is kind
    assert made.description
    assert made.log_hint()
    for file in made.files():
        assert file.path.is_absolute()
        assert "EXAMPLE_SECRET" not in file.text


def test_a_service_that_there_is_not(subject: Subject) -> None:
    with pytest.raises(ConfigError, match="there is no upstart") as caught:
        service("upstart", subject)
    assert "systemd-user" in caught.value.remedy


def test_with_another_root_only_a_process_can_be_started(places: Locations) -> None:
    assert available(places) == (BackgroundProcess,)
    for kind in SERVICES:
        assert kind is BackgroundProcess or kind.unavailable(places)


@pytest.mark.skipif(sys.platform != "linux", reason="says what Linux says")
def test_why_a_machine_has_no_service_is_said() -> None:
    user, root = Locations.here({}, uid=1000), Locations.here({}, uid=0)
    assert "Mac" in LaunchAgent.unavailable(user)
    assert "root" in UserUnit.unavailable(root)
    assert SystemUnit.unavailable(user)


def test_commands_are_shown_and_their_words_told(capfd: pytest.CaptureFixture[str]) -> None:
    told: list[str] = []
    assert run(("echo", "a b"), told.append) == "a b\n"
    assert told == ["$ echo 'a b'"]
    with pytest.raises(ServiceFailed, match=r"sh -c 'echo no.*': no way"):
        run(("sh", "-c", "echo no way; exit 3"), told.append)
    assert attempt(("no such program",)).returncode == 127
    assert attempt(("sleep", "60"), timeout_s=0.05).returncode == 127
    assert capfd.readouterr() == ("", "")


def _needs(program: str) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not here")


def test_the_yaml_of_the_compose_file_is_what_was_meant(subject: Subject) -> None:
    """Words that YAML would take for something else stay words."""
    node = compose(replace(subject, models=Path("/srv/yes")))
    assert json.loads(json.dumps(node)) == node
    assert node["logging"]["options"]["max-file"] == "3"
    assert node["healthcheck"]["test"][3].startswith("import urllib.request as r; ")

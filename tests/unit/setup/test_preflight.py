"""What is looked at before anything is asked."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from viiwork_core import ConfigError, FolderListing, FoundModel, Recognizes
from viiwork_core.contracts.doctor import Finding, Level
from viiwork_core.contracts.engine import Engine
from viiwork_core.errors import DiscoveryFailed
from viiwork_core.setup.answers import ApiAnswer, MeshAnswer
from viiwork_core.setup.locations import Locations
from viiwork_core.setup.preflight import Wanted, preflight, wanted
from viiwork_core.testing.fake_plugin import FakeEngine


class Here(FakeEngine, Recognizes):
    @classmethod
    def recognize(cls, folder: FolderListing) -> Sequence[FoundModel]:
        return ()

    @classmethod
    def program(cls) -> str:
        return sys.executable


class Missing(Here):
    @classmethod
    def program(cls) -> str:
        raise ConfigError("models[x].acme.binary: there is none on PATH", remedy="build it")


class Failing(Here):
    @classmethod
    def program(cls) -> str:
        raise RuntimeError("no idea")


class NotThere(Here):
    @classmethod
    def program(cls) -> str:
        return "/no/such/program"


class Attached(FakeEngine, Recognizes):
    """Has no program to find."""

    @classmethod
    def recognize(cls, folder: FolderListing) -> Sequence[FoundModel]:
        return ()


def locations(root: Path) -> Locations:
    return Locations.here({"HOME": str(root)}, base=root)


def looked(root: Path, engine: type[Engine] = Here, *, port: int = 0, replace: bool = False) -> list[Finding]:
    ports = wanted(ApiAnswer(port=port), MeshAnswer(), in_mesh=False)
    look = preflight(locations(root), {"acme": engine}, ports, in_mesh=False, replace=replace)
    return asyncio.run(look)


def test_a_clean_machine(tmp_path: Path) -> None:
    assert {one.level for one in looked(tmp_path)} == {Level.OK}


def test_a_machine_that_is_set_up(tmp_path: Path) -> None:
    config = locations(tmp_path).config
    config.parent.mkdir(parents=True)
    config.touch()
    first = looked(tmp_path)[0]
    assert (first.level, "--replace" in first.remedy) == (Level.PROBLEM, True)
    assert looked(tmp_path, replace=True)[0].level is Level.OK


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
        found = [one for one in looked(tmp_path, port=port) if one.level is Level.PROBLEM]
    assert [one.what for one in found] == [f"tcp {port} on 127.0.0.1 cannot be had for the API: Address already in use"]
    assert "api.port" in found[0].remedy


@pytest.mark.parametrize(
    ("engine", "said", "remedy"),
    [
        (Missing, "acme: there is none on PATH", "build it"),
        (Failing, "acme: no idea", "README"),
        (NotThere, "acme: /no/such/program does not run", "install it anew"),
    ],
)
def test_a_program_that_is_missing_is_a_warning(tmp_path: Path, engine: type[Engine], said: str, remedy: str) -> None:
    (found,) = [one for one in looked(tmp_path, engine) if one.level is not Level.OK]
    assert found.level is Level.WARNING
    assert found.what.startswith(said)
    assert remedy in found.remedy


def test_an_engine_without_a_program_says_nothing(tmp_path: Path) -> None:
    assert not [one for one in looked(tmp_path, Attached) if "acme" in one.what]


def test_without_an_engine_it_says_what_to_install(tmp_path: Path) -> None:
    look = preflight(locations(tmp_path), {}, [], in_mesh=False, replace=False)
    (found,) = [one for one in asyncio.run(look) if one.level is not Level.OK]
    assert "pip install" in found.remedy


@pytest.mark.parametrize(
    ("api", "mesh", "in_mesh", "places"),
    [
        ({}, {}, False, {("tcp", "127.0.0.1", 8086)}),
        ({"port": 0}, {}, False, set[tuple[str, str, int]]()),
        ({"host": "127.0.0.5"}, {}, False, {("tcp", "127.0.0.5", 8086)}),
        ({}, {}, True, {("tcp", "0.0.0.0", 8086), ("tcp", "0.0.0.0", 7946), ("udp", "0.0.0.0", 7946)}),
        (
            {"port": 80},
            {"advertise": "127.0.0.2", "bind_port": 9},
            True,
            {("tcp", "127.0.0.1", 80), ("tcp", "127.0.0.2", 80), ("tcp", "127.0.0.2", 9), ("udp", "127.0.0.2", 9)},
        ),
    ],
)
def test_which_ports_are_wanted(
    api: dict[str, object], mesh: dict[str, object], in_mesh: bool, places: set[tuple[str, str, int]]
) -> None:
    found: list[Wanted] = wanted(
        ApiAnswer.model_validate(api), MeshAnswer.model_validate({"mode": "open", **mesh}), in_mesh=in_mesh
    )
    assert {(one.kind, one.host, one.port) for one in found} == places


def test_discoveries_are_told(tmp_path: Path) -> None:
    away = DiscoveryFailed("no daemon runs", remedy="start it")
    addresses = {"placed": "100.64.0.7", "blind": None, "away": away}
    look = preflight(locations(tmp_path), {"acme": Here}, [], in_mesh=True, replace=False, addresses=addresses)
    told = {one.what: (one.level, one.remedy) for one in asyncio.run(look)}
    assert told["placed can find nodes; this machine is 100.64.0.7 there"] == (Level.OK, "")
    assert told["blind can find nodes"] == (Level.OK, "")
    wanted = (Level.WARNING, "to find nodes by away: start it")
    assert told["away finds no nodes here: no daemon runs"] == wanted

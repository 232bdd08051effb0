"""Real nodes with real llama-servers on two hosts, each test on every kind of host that can be made here."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from viiwork_core.testing.tiny_model import write_gguf

sys.path.insert(0, str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parents[2]))  # for what tests and measurements share

from crew import Crew, crew
from hosts import KINDS, LOOPBACK, NAMESPACES, Hosts, NoHosts, hosts  # found by the line above
from mesh import Mesh, two_nodes

from bench.lan import Lan, NoLan, lan


@pytest.fixture(scope="session")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("model") / "tiny.gguf")


# The quick tests take one kind of host: the one with a network of its own, where that can be made.
QUICK = NAMESPACES if os.geteuid() == 0 and shutil.which("ip") else LOOPBACK
PAIRS = [pytest.param(kind, marks=() if kind == QUICK else pytest.mark.slow) for kind in KINDS]


@pytest.fixture(scope="module", params=PAIRS)
def pair(request: pytest.FixtureRequest) -> Iterator[Hosts]:
    try:
        with hosts(request.param) as made:
            yield made
    except NoHosts as error:
        pytest.skip(str(error))


@pytest.fixture
def cable() -> Iterator[Hosts]:
    """Two machines and a cable, without any other network."""
    try:
        with hosts(NAMESPACES) as made:
            yield made
    except NoHosts as error:
        pytest.skip(str(error))


@pytest.fixture
def switch() -> Iterator[Lan]:
    """Four machines on a switch, without any other network."""
    try:
        with lan(4) as made:
            yield made
    except NoLan as error:
        pytest.skip(str(error))


@pytest.fixture
def machines(switch: Lan, tmp_path: Path) -> Iterator[Crew]:
    """The same, with nodes to start on them."""
    with crew(switch, tmp_path) as made:
        yield made


@pytest.fixture(scope="module")
def shared_mesh(
    pair: Hosts, gguf: Path, llama_server: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Mesh]:
    with two_nodes(pair, gguf, tmp_path_factory.mktemp("mesh")) as made:
        yield made


@pytest.fixture
def mesh(shared_mesh: Mesh) -> Mesh:
    """Two nodes with all slots free, shared by the tests of a module."""
    shared_mesh.settled()
    return shared_mesh


@pytest.fixture
def own_mesh(pair: Hosts, gguf: Path, llama_server: None, tmp_path: Path) -> Iterator[Mesh]:
    """Two nodes of the test's own, to do away with."""
    with two_nodes(pair, gguf, tmp_path) as made:
        yield made

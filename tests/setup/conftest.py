"""Makes the helpers here importable, also from processes that the tests start; and nodes that are set up."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from machine import VIIWORK, SetUp  # found by the line above

from viiwork_core.setup.installation import Installation
from viiwork_core.setup.locations import Locations
from viiwork_core.setup.process import BackgroundProcess
from viiwork_core.setup.service import Subject
from viiwork_core.setup.written import WrittenFile
from viiwork_core.testing.tiny_model import write_gguf


@pytest.fixture
def places(tmp_path: Path) -> Locations:
    """Of root, in a folder of their own."""
    return Locations.here({"HOME": "/home/somebody"}, base=tmp_path / "machine", uid=0)


@pytest.fixture(scope="session")
def gguf(llama_server: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model that llama-server serves."""
    return write_gguf(tmp_path_factory.mktemp("models") / "tiny.gguf")


@pytest.fixture
def set_up(tmp_path: Path) -> Iterator[SetUp]:
    """Writes a node's files as the wizard does, in a folder of their own. Whatever runs then ends with the test."""
    made: list[BackgroundProcess] = []

    def write(model: Path | None, **more: object) -> BackgroundProcess:
        places = Locations.here({"HOME": str(tmp_path / "home")}, base=tmp_path / "machine")
        service = BackgroundProcess(Subject(places, VIIWORK, grace_s=1.0))
        config = {
            "node": {"name": "attic", "state_dir": str(places.state)},
            "api": {"port": 0},
            "mesh": {"network": "none"},
            "health": {"respawn_grace": "1s", "max_respawns": 0},
            "models": [] if model is None else [_entry(model)],
        } | more
        # JSON is YAML.
        own = (
            WrittenFile(places.config, json.dumps(config)),
            WrittenFile(places.environment, "VIIWORK_PLUGINS=llamacpp\n", 0o600),
        )
        with Installation.held(places) as installation:
            installation.write((*own, *service.files()), service)
        made.append(service)
        return service

    yield write
    for service in made:
        service.stop(_silent)


def _entry(model: Path) -> dict[str, object]:
    return {"name": "tiny", "engine": "llamacpp", "path": str(model), "context": 2048, "llamacpp": {"threads": 1}}


def _silent(line: str) -> None:
    del line

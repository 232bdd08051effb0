"""What names stand for: the first model that is served, here or by a member that has just said so."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from viiwork_core.config.load import parse_config
from viiwork_core.engines.slots import Room
from viiwork_core.errors import ModelNotServed, NotFound
from viiwork_core.mesh.capacity import PeerView
from viiwork_core.mesh.member import Member
from viiwork_core.mesh.report import CapacityReport, ModelReport
from viiwork_core.node.naming import Naming
from viiwork_core.observe.events import EventLog
from viiwork_core.testing.fake_clock import FakeClock
from viiwork_core.web.catalog import ModelRecord


class Scene:
    """Names over stand-ins for the router and the slots."""

    def __init__(self, folder: Path) -> None:
        self.clock = FakeClock()
        self.here: dict[str, int] = {}
        self.views: dict[str, PeerView] = {}
        self.events = EventLog(self.clock, history=50)
        config = parse_config(f"node: {{name: here, state_dir: {folder}}}\nmesh: {{network: none}}", {}, origin="test")
        self.naming = Naming(config, self, self, self.events, self.clock)  # type: ignore[arg-type]  # as said above

    def room(self, model: str) -> Room | None:
        return Room(2, 2, 0, 1, self.here[model], None) if model in self.here else None

    def reports(self) -> tuple[PeerView, ...]:
        return tuple(self.views.values())

    def knows(self, model: str) -> bool:
        return model in self.here or any(
            one.name == model for view in self.views.values() for one in view.report.models
        )

    def report(self, node: str, **models: int) -> None:
        """A member says how many healthy backends its models have; all of them are busy."""
        found = tuple(
            ModelReport(name, "e", slots=healthy, busy=healthy, queued=0, backends=1, healthy_backends=healthy)
            for name, healthy in models.items()
        )
        member = Member(node=node, node_id=f"{node}-1", host="127.0.0.1", api_port=1)
        report = CapacityReport(node=node, node_id=member.node_id, ver="1", models=found)
        self.views[node] = PeerView(member, report, self.clock.monotonic(), 1.0)

    def set(self, name: str, target: str, *fallbacks: str) -> None:
        asyncio.run(self.naming.set(name, target, fallbacks, force=True))

    def info(self, name: str) -> Any:
        return self.naming.info(name)


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_the_target_counts_while_it_is_served_full_or_not(scene: Scene) -> None:
    scene.set("a", "big", "small")
    scene.here = {"small": 1}
    assert (scene.naming.resolve("a"), scene.info("a")["state"]) == ("small", "fallback")
    scene.report("there", big=1)
    assert (scene.naming.resolve("a"), scene.info("a")["state"]) == ("big", "ok")
    scene.clock.advance(2.9)
    assert scene.naming.resolve("a") == "big"
    scene.clock.advance(0.2)
    assert scene.naming.resolve("a") == "small", "the report is too old"
    scene.report("there", big=0)
    assert scene.naming.resolve("a") == "small", "none of its backends is healthy"
    scene.here = {"small": 1, "big": 1}
    assert scene.naming.resolve("a") == "big"


def test_nothing_served_is_said_with_what_was_meant(scene: Scene) -> None:
    scene.set("a", "big", "small")
    scene.here = {"big": 0}
    with pytest.raises(ModelNotServed, match="alias a stands for nothing that is served now") as caught:
        scene.naming.resolve("a")
    assert (caught.value.status, caught.value.retry_after, caught.value.remedy) == (503, 5, "its models: big, small")
    assert (scene.info("a")["state"], scene.info("a")["resolved"]) == ("unavailable", None)


def test_a_model_comes_before_an_alias_of_its_name(scene: Scene) -> None:
    scene.set("a", "big")
    scene.report("there", a=0, big=1)
    assert scene.naming.resolve("a") is None
    assert (scene.info("a")["state"], scene.info("a")["resolved"]) == ("shadowed", "a")
    scene.views.clear()
    scene.report("there", big=1)
    assert scene.naming.resolve("a") == "big"


def test_other_names_are_no_aliases(scene: Scene) -> None:
    scene.set("a", "big")
    asyncio.run(scene.naming.remove("a"))
    for name in ("a", "big", "", "x" * 300):
        assert scene.naming.resolve(name) is None
    assert scene.info("a")["state"] == "deleted"
    with pytest.raises(NotFound):
        scene.info("big")


def test_an_alias_is_listed_as_the_model_that_it_stands_for(scene: Scene) -> None:
    scene.set("a", "big", "small")
    scene.set("b", "nothing")
    models = [ModelRecord("small", "local", 4096), ModelRecord("big", "peer", 8192)]
    scene.here = {"small": 1}
    assert scene.naming.records(models) == [
        ModelRecord("a", "alias", 4096, target="big"),
        ModelRecord("b", "alias", None, target="nothing"),
    ]
    scene.report("there", big=1)
    assert scene.naming.records(models)[0] == ModelRecord("a", "alias", 8192, target="big")


def test_what_happens_is_told_as_events(scene: Scene) -> None:
    scene.set("a", "big", "small", "tiny")
    asyncio.run(scene.naming.remove("a"))
    told = [(event.type, event.message) for event in scene.events.events()]
    assert told == [("alias", "a → big, else small, tiny (by here)"), ("alias", "a → nothing (by here)")]

"""What becomes of backends and members, as the activity log hears it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from viiwork_core.engines.slots import SlotBook
from viiwork_core.engines.states import BackendState, BackendView
from viiwork_core.mesh.capacity import PeerView
from viiwork_core.mesh.member import Member
from viiwork_core.mesh.report import CapacityReport
from viiwork_core.node.narration import Narration
from viiwork_core.observe.events import EventLog
from viiwork_core.testing.fake_clock import FakeClock


class Scene:
    def __init__(self) -> None:
        clock = FakeClock()
        self.book, self.log = SlotBook(clock), EventLog(clock, history=100)
        self.narration = Narration(self.log, self.book)
        self.view = BackendView("m/0", "m", "fake", BackendState.STARTING, 0, 1)

    def see(self, **changes: Any) -> None:
        self.view = replace(self.view, **changes)
        self.book.see(self.view)
        self.narration.look()

    def heard(self, node: str, node_id: str) -> None:
        member = Member(node=node, node_id=node_id, host="127.0.0.1", api_port=2)
        self.narration.heard(PeerView(member, CapacityReport(node=node, node_id=node_id, ver="1"), 0.0, 1.0))

    @property
    def told(self) -> list[str]:
        return [event.message for event in self.log.events()]


def test_each_change_of_state_is_told_once() -> None:
    scene = Scene()
    scene.see()
    scene.see(incarnation=1, progress=0.5)
    scene.see(state=BackendState.HEALTHY)
    scene.see(context=4096)
    scene.see(state=BackendState.UNHEALTHY, reason="no answer")
    scene.see(state=BackendState.DEAD, reason="given up\nlast lines of its log")
    assert scene.told == ["m/0 starting", "m/0 healthy", "m/0 unhealthy: no answer", "m/0 dead: given up"]
    assert {event.type for event in scene.log.events()} == {"backend"}


def test_a_start_after_a_crash_is_told_though_it_was_starting_already() -> None:
    scene = Scene()
    scene.see()
    scene.see(respawns=1, reason="exit status 1")
    scene.see(incarnation=2)
    assert scene.told == ["m/0 starting", "m/0 starting: exit status 1"]


def test_a_backend_that_is_forgotten_and_comes_back_is_told_anew() -> None:
    scene = Scene()
    scene.see(state=BackendState.HEALTHY)
    scene.book.forget("m/0")
    scene.narration.look()
    scene.see()
    assert scene.told == ["m/0 healthy", "m/0 healthy"]


def test_members_are_told_when_they_come_and_go_and_when_they_are_new() -> None:
    scene = Scene()
    for _ in range(3):
        scene.heard("cellar", "viiwork-1")
    scene.heard("cellar", "viiwork-2")
    scene.narration.forgot("cellar")
    scene.narration.forgot("cellar")
    assert scene.told == ["member cellar is here", "member cellar is here", "member cellar is gone"]

"""What a node tells of a model's part in kv_share, and which session an operator means."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from viiwork_core.config.schema import Config
from viiwork_core.engines.slots import SlotBook
from viiwork_core.engines.states import BackendState, BackendView
from viiwork_core.kvshare.caches import Caches, SharedModel
from viiwork_core.kvshare.movability import OF_NO_USE
from viiwork_core.kvshare.replicas import ReplicaStore
from viiwork_core.node.background import Background
from viiwork_core.node.ledger import Ledger
from viiwork_core.node.plans import Planned
from viiwork_core.security.secret import SessionKeys
from viiwork_core.testing.fake_clock import FakeClock

SHARED: Any = SharedModel("g", 1, None, {})  # type: ignore[arg-type]  # no engine is asked here
KEYS = SessionKeys(None, mesh="default")


class Nothing:
    """A learning that takes note of what it is to forget."""

    def __init__(self) -> None:
        self.forgotten: list[str] = []

    def forget(self, session: str) -> None:
        self.forgotten.append(session)


class Scene:
    def __init__(self, folder: Path) -> None:
        self.clock = FakeClock()
        self.book, self.learning = SlotBook(self.clock), Nothing()
        config = Config.model_validate({"node": {"name": "a", "state_dir": str(folder)}, "mesh": {"open": True}})
        parts: tuple[Any, ...] = (config, None, [], self.book, self.learning, self.clock)
        self.ledger = Ledger(*parts)
        self.caches = Caches(
            {},
            slotted={"m": True},
            book=self.book,
            store=ReplicaStore(folder / "kv" / "replicas", 100, self.clock).open(),
            sender=None,
            control=None,  # type: ignore[arg-type]  # no engine is asked here
            target=lambda *_: None,
            clock=self.clock,
            buried=self.ledger.buried,
        )

    async def open(self, background: Background) -> None:
        await self.ledger.open()
        self.ledger.follow(self.caches, None, background)

    def see(self, index: int = 0, **known: Any) -> None:
        self.book.see(BackendView(f"m/{index}", "m", "e", BackendState.HEALTHY, 1, 2, **known))

    def mark(self, shared: SharedModel | None = SHARED, unshared: str | None = None) -> dict[str, Any] | None:
        return self.ledger.mark(Planned("m", (), None, shared, unshared))  # type: ignore[arg-type]  # not asked


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    made = Scene(tmp_path)

    async def opened() -> None:
        async with Background(1.0) as background:
            await made.open(background)

    asyncio.run(opened())
    return made


def state(scene: Scene) -> tuple[str, str | None]:
    mark = scene.mark()
    assert mark is not None
    return mark["state"], mark.get("reason")


def test_a_mark_says_why_a_model_is_not_shared(scene: Scene) -> None:
    assert scene.mark(None) is None
    off = scene.mark(None, "the mesh is open")
    assert off == {"state": "off", "reason": "the mesh is open"}
    assert state(scene)[0] == "waiting"
    scene.see(fingerprint="f")
    assert state(scene) == ("on", None)
    scene.see(1, fingerprint="g")
    assert state(scene)[0] == "off"
    scene.see(1, fingerprint=None, unshared="the model is recurrent; remove kv_share")
    assert state(scene) == ("off", "the model is recurrent; remove kv_share")


def test_a_model_that_has_shown_to_be_unmovable_is_marked(scene: Scene) -> None:
    scene.see(fingerprint="f")
    for _ in range(2):
        scene.caches._promises._movability.judged("m", "f", useful=False)
    assert state(scene) == ("off", OF_NO_USE)
    assert scene.ledger.unmovable("m", "f")


def test_a_session_is_meant_by_its_name_or_its_key(scene: Scene) -> None:
    key = KEYS.session_key("mine")
    assert asyncio.run(scene.ledger.forget("mine"))["sessions"] == [key]
    answer = asyncio.run(scene.ledger.forget(key))
    assert set(answer["sessions"]) == {key, KEYS.session_key(key)}
    assert answer["members"] == {"alive": 1, "have": 1, "missing": []}
    assert key in scene.learning.forgotten
    assert scene.ledger.buried(key) == 0
    assert asyncio.run(scene.ledger.told({key: 7})) == {"node": "a", "replicas": 0}
    assert (scene.ledger.buried(key), scene.caches.turn_of(key)) == (7, 7)


def test_what_is_forgotten_is_still_so_after_a_restart(scene: Scene, tmp_path: Path) -> None:
    key = KEYS.session_key("mine")
    asyncio.run(scene.ledger.told({key: 3}))
    again = Scene(tmp_path)
    asyncio.run(again.ledger.open())
    assert again.ledger.buried(key) == 3
    assert again.ledger.digest == scene.ledger.digest

"""The listener kit finds nothing wrong with a sound listener, and each clause catches one that breaks it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, ClassVar, Self

import pytest
from pydantic import Field

from viiwork_core import EventType, Listener, NodeEvent, PluginOptions
from viiwork_core.testing.clauses import judge
from viiwork_core.testing.listener_kit import LISTENER_CLAUSES, ListenerCase, check_listener, kit_context


class SoundOptions(PluginOptions):
    file: str = Field(default="events", pattern=r"^[a-z]+$")


class Sound(Listener):
    """Writes lines."""

    name = "sound"
    types = frozenset(EventType)
    Options: ClassVar[type[PluginOptions]] = SoundOptions

    async def on(self, event: NodeEvent) -> None:
        await asyncio.sleep(0)
        assert isinstance(self.options, SoundOptions)
        with (self.context.state_dir / self.options.file).open("a") as file:
            file.write(f"{event.number} {event.message}\n")


class Shouting(Sound):
    name = "Sound Listener"


class Deaf(Sound):
    types = frozenset()


class TakesAnything(Sound):
    class Options(SoundOptions):
        model_config: ClassVar[Any] = {"extra": "ignore"}


class OpensOnce(Sound):
    opened: ClassVar[int] = 0

    async def __aenter__(self) -> Self:
        OpensOnce.opened += 1
        if OpensOnce.opened > 1:
            raise RuntimeError("it is open already")
        return self


class Picky(Sound):
    async def on(self, event: NodeEvent) -> None:
        event.message.encode("ascii")


class Sulks(Sound):
    """Never gets over having been cancelled."""

    def __init__(self, options: PluginOptions, context: Any) -> None:
        super().__init__(options, context)
        self.sulks = False

    async def on(self, event: NodeEvent) -> None:
        if self.sulks:
            raise RuntimeError("you have cancelled me")
        try:
            await super().on(event)
        except asyncio.CancelledError:
            self.sulks = True
            raise


BROKEN: dict[int, type[Listener]] = {1: Shouting, 2: Deaf, 3: TakesAnything, 4: OpensOnce, 5: Picky, 6: Sulks}


def case(listener: type[Listener], folder: Path) -> ListenerCase:
    return ListenerCase(listener, listener.Options(), kit_context(folder))


def test_a_sound_listener_keeps_the_contract(tmp_path: Path) -> None:
    assert asyncio.run(check_listener(case(Sound, tmp_path))) == []
    assert "模型" in (tmp_path / "events").read_text()


@pytest.mark.parametrize("clause", LISTENER_CLAUSES, ids=lambda clause: str(clause.number))
def test_each_clause_catches_who_breaks_it(clause: Any, tmp_path: Path) -> None:
    OpensOnce.opened = 0
    (breach,) = asyncio.run(judge(clause, case(BROKEN[clause.number], tmp_path)))
    assert breach.clause == clause.number

"""The engine kit finds nothing wrong with the fake engine, and each clause catches an engine that breaks it."""

import asyncio
import itertools
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from viiwork_core.contracts.capabilities import Advises, Recognizes, Versioned, WarmsUp
from viiwork_core.contracts.engine import (
    Address,
    Launch,
    Load,
    Probe,
    SlotLoad,
    Spec,
    StreamEnd,
    UsageSource,
    Vendor,
    Wire,
)
from viiwork_core.contracts.recognition import FolderListing, FoundModel
from viiwork_core.errors import EngineUnreachable
from viiwork_core.testing.clauses import Breach, Clause, judge
from viiwork_core.testing.engine_kit import (
    ENGINE_CLAUSES,
    STARTED,
    STARTS,
    EngineCase,
    check_engine,
    examine_engine,
    kit_context,
)
from viiwork_core.testing.fake_plugin import FakeEngine, FakeOptions
from viiwork_core.testing.servers import launched

WIRE = FakeEngine.wire
OLD_WIRE = replace(WIRE, keep_alive=False, stream_end=StreamEnd.DONE)
LIVE = {clause.number for clause in STARTED}


class OldHttp(FakeEngine):
    """Speaks HTTP/1.0 and says so."""

    wire: ClassVar[Wire] = OLD_WIRE


def case(folder: Path, engine: type[FakeEngine] = FakeEngine, args: tuple[str, ...] = (), **options: Any) -> EngineCase:
    spec = Spec(model="tiny", index=0, backends=1, path=None, context=4096, parallel=2, args=args)
    return EngineCase(engine, FakeOptions(**options), spec, kit_context(folder))


def states(**facts: Any) -> type[FakeEngine]:
    """The fake engine with other facts in its Wire than are true."""

    class Misstated(FakeEngine):
        wire: ClassVar[Wire] = replace(WIRE, **facts)

    return Misstated


class Shouting(FakeEngine):
    name = "Fake Engine"


class ArgsFirst(FakeEngine):
    def launch(self, spec: Spec) -> Launch | None:
        launch = super().launch(replace(spec, args=()))
        assert launch is not None
        return Launch((launch.argv[0], *spec.args, *launch.argv[1:]))


class Counting(FakeEngine):
    counter = itertools.count()

    def launch(self, spec: Spec) -> Launch | None:
        return super().launch(replace(spec, context=4096 + next(self.counter)))


class NeedsPath(FakeEngine):
    def launch(self, spec: Spec) -> Launch | None:
        assert spec.path is not None
        return super().launch(spec)


class TakesAnything(FakeEngine):
    class Options(FakeOptions):
        model_config: ClassVar[Any] = {"extra": "ignore"}


class NeverUnreachable(FakeEngine):
    async def probe(self, address: Address) -> Probe:
        try:
            return await super().probe(address)
        except EngineUnreachable:
            return Probe(ready=False)


class ExpectsJson(FakeEngine):
    async def probe(self, address: Address) -> Probe:
        return Probe(ready=(await self._client.ask("GET", address, "/health"))["status"] == "ok")


class AlwaysReady(FakeEngine):
    async def probe(self, address: Address) -> Probe:
        await super().probe(address)
        return Probe(ready=True)


class TrustsSlots(FakeEngine):
    async def load(self, spec: Spec, address: Address) -> Load:
        entries = await self._client.ask("GET", address, "/slots")
        return Load(slots=len(entries), busy=0, context=entries[0]["n_ctx"])


class StartsNothing(FakeEngine):
    def launch(self, spec: Spec) -> Launch | None:
        return None


class ReadyOnce(FakeEngine):
    asked = itertools.count()

    async def probe(self, address: Address) -> Probe:
        probe = await super().probe(address)
        return probe if probe.ready and next(self.asked) == 0 else Probe(ready=False, reason="no more")


class ElsewhereOnly(FakeEngine):
    """Its port is right and its address is not."""

    def launch(self, spec: Spec) -> Launch | None:
        return super().launch(replace(spec, host="127.0.0.2"))

    async def probe(self, address: Address) -> Probe:
        return await super().probe(replace(address, host="127.0.0.2"))


class TooBusy(FakeEngine):
    async def load(self, spec: Spec, address: Address) -> Load:
        return replace(await super().load(spec, address), busy=3)


class CountsFromOne(FakeEngine):
    async def load(self, spec: Spec, address: Address) -> Load:
        load = await super().load(spec, address)
        return replace(load, each=tuple(SlotLoad(slot.id + 1, slot.busy) for slot in load.each))


class NoTimeToEnd(FakeEngine):
    stop_timeout = 0.0


class WarmsUpForEver(FakeEngine, WarmsUp):
    def warm_up(self) -> float:
        return math.inf


class ChangesItsMind(FakeEngine, WarmsUp):
    asked = itertools.count()

    def warm_up(self) -> float:
        return next(self.asked)


class OneLongText(FakeEngine, Advises):
    async def advice(self, spec: Spec) -> Sequence[str]:
        return "it may be slow"


class Paragraphs(FakeEngine, Advises):
    async def advice(self, spec: Spec) -> Sequence[str]:
        return ["it may be slow", "set this:\n\tthat"]


class WholeBanner(FakeEngine, Versioned):
    async def version(self, address: Address) -> str | None:
        return "fake engine, version 1 (built today)"


class Blind(FakeEngine, Recognizes):
    @classmethod
    def recognize(cls, folder: FolderListing) -> Sequence[FoundModel]:
        return ()


class Trusting(FakeEngine, Recognizes):
    """Takes every file for what its name says."""

    @classmethod
    def recognize(cls, folder: FolderListing) -> Sequence[FoundModel]:
        found = [folder.path / name for name in folder.files]
        return [FoundModel("m", path, folder.files[path.name], json.loads(path.read_text())["kind"]) for path in found]


class Sighted(FakeEngine, Recognizes):
    """Knows a model of the fake engine, which is a JSON file."""

    @classmethod
    def recognize(cls, folder: FolderListing) -> Sequence[FoundModel]:
        return [
            FoundModel("m", folder.path / name, size)
            for name, size in folder.files.items()
            if (folder.path / name).read_bytes() == MODEL
        ]


class Composed(Sighted):
    """Mistakes a file of Compose for the recipe."""

    @classmethod
    def dockerfile(cls, vendor: Vendor) -> str | None:
        return "services: {viiwork: {image: viiwork}}"


class OnlyTheServer(Sighted):
    """An image that starts the engine's own program."""

    @classmethod
    def dockerfile(cls, vendor: Vendor) -> str | None:
        return 'FROM acme/server\nENTRYPOINT ["acme-server"]\n' if vendor is Vendor.AMD else None


MODEL = b'{"kind": "fake"}'


def with_model(folder: Path, engine: type[FakeEngine]) -> EngineCase:
    tried = case(folder, engine)
    (folder / "models").mkdir()
    path = folder / "models" / "m.json"
    path.write_bytes(MODEL)
    return replace(tried, spec=replace(tried.spec, path=path))


Broken = Callable[[Path], EngineCase]

BROKEN: list[tuple[int, Broken]] = [
    (1, lambda folder: case(folder, Shouting)),
    (2, lambda folder: case(folder, states(endpoints=WIRE.endpoints | {"/slots"}))),
    (3, lambda folder: case(folder, ArgsFirst)),
    (4, lambda folder: case(folder, Counting)),
    (5, lambda folder: case(folder, NeedsPath)),
    (5, lambda folder: case(folder, TakesAnything)),
    (6, lambda folder: case(folder, NeverUnreachable)),
    (7, lambda folder: case(folder, ExpectsJson)),
    (7, lambda folder: case(folder, AlwaysReady)),
    (8, lambda folder: case(folder, TrustsSlots)),
    (9, lambda folder: case(folder, exit_at_start=True)),
    (9, lambda folder: case(folder, StartsNothing)),
    (9, lambda folder: replace(case(folder, load_seconds=3600), ready_within=0.5)),
    (10, lambda folder: case(folder, ReadyOnce)),
    (11, lambda folder: case(folder, args=("--alias", "other"), only_model=True)),
    (12, lambda folder: case(folder, ElsewhereOnly)),
    (13, lambda folder: case(folder, TooBusy)),
    (14, lambda folder: case(folder, CountsFromOne)),
    (15, lambda folder: case(folder, answer_status=(500,))),
    (15, lambda folder: case(folder, states(usage=UsageSource.ABSENT))),
    (16, lambda folder: case(folder, cut_after=3)),
    (17, lambda folder: case(folder, states(usage=UsageSource.INCLUDE_USAGE))),
    (17, lambda folder: case(folder, states(usage=UsageSource.ABSENT))),
    (18, lambda folder: case(folder, http10=True)),
    (18, lambda folder: case(folder, OldHttp, http10=True, cut_after=5)),
    (19, lambda folder: case(folder, http10=True)),
    (19, lambda folder: case(folder, states(keep_alive=False))),
    (20, lambda folder: replace(case(folder, states(slot_field="slot")), settle_within=0.5)),
    (21, lambda folder: case(folder, states(session_header="no header"))),
    (22, lambda folder: case(folder, NoTimeToEnd)),
    (22, lambda folder: case(folder, WarmsUpForEver)),
    (22, lambda folder: case(folder, ChangesItsMind)),
    (23, lambda folder: case(folder, OneLongText)),
    (23, lambda folder: case(folder, Paragraphs)),
    (24, lambda folder: case(folder, WholeBanner)),
    (25, lambda folder: replace(case(folder, wedge_slot=0), settle_within=0.5)),
    (26, lambda folder: with_model(folder, Blind)),
    (26, lambda folder: with_model(folder, Trusting)),
    (27, lambda folder: with_model(folder, Composed)),
    (27, lambda folder: with_model(folder, OnlyTheServer)),
]


def clause(number: int) -> Clause[EngineCase]:
    return next(one for one in ENGINE_CLAUSES if one.number == number)


async def check_one(number: int, tried: EngineCase) -> list[Breach]:
    if number not in LIVE:
        return await judge(clause(number), tried)
    async with tried.opened() as engine, launched(engine, tried.spec) as process:
        pid = process.child.pid
        return await judge(clause(number), replace(tried, spec=process.spec, address=process.address, pid=pid))


def test_the_fake_engine_keeps_all_clauses(tmp_path: Path) -> None:
    assert asyncio.run(check_engine(case(tmp_path))) == []


def test_the_fake_engine_keeps_all_clauses_over_http_1_0(tmp_path: Path) -> None:
    assert asyncio.run(check_engine(case(tmp_path, OldHttp, http10=True))) == []


def test_clauses_are_numbered_from_one() -> None:
    assert [one.number for one in ENGINE_CLAUSES] == list(range(1, len(ENGINE_CLAUSES) + 1))


def test_each_clause_has_an_engine_that_breaks_it() -> None:
    assert {number for number, _ in BROKEN} == {one.number for one in ENGINE_CLAUSES}


@pytest.mark.parametrize(("number", "broken"), BROKEN)
def test_a_broken_engine_is_found(tmp_path: Path, number: int, broken: Broken) -> None:
    breaches = asyncio.run(check_one(number, broken(tmp_path)))
    assert [breach.clause for breach in breaches] == [number]
    assert breaches[0].problem


class Whole(FakeEngine, Advises, Versioned, WarmsUp):
    """Has each capability, and keeps it."""

    async def advice(self, spec: Spec) -> Sequence[str]:
        return ("It may be slow; buy another.",)

    async def version(self, address: Address) -> str | None:
        return "1.0+fake"

    def warm_up(self) -> float:
        return 0.0


def test_an_engine_with_capabilities_keeps_all_clauses(tmp_path: Path) -> None:
    assert asyncio.run(check_engine(case(tmp_path, Whole))) == []


def test_an_engine_that_knows_its_models_keeps_all_clauses(tmp_path: Path) -> None:
    assert asyncio.run(check_engine(with_model(tmp_path, Sighted))) == []


def test_each_clause_has_a_verdict(tmp_path: Path) -> None:
    verdicts = asyncio.run(examine_engine(case(tmp_path, exit_at_start=True)))
    assert [one.clause for one in verdicts] == [one.number for one in ENGINE_CLAUSES]
    assert {one.clause for one in verdicts if one.outcome == "not checked"} == LIVE
    assert [one.clause for one in verdicts if one.outcome == "fail"] == [STARTS.number]


def test_a_clause_that_is_left_out_says_why(tmp_path: Path) -> None:
    verdicts = asyncio.run(examine_engine(case(tmp_path), left_out={3: "no model", STARTS.number: "no program"}))
    told = {one.clause: one.problem for one in verdicts if one.outcome == "not checked"}
    assert told == {3: "no model"} | dict.fromkeys({STARTS.number, *LIVE}, "no program")
    assert not [one for one in verdicts if one.outcome == "fail"]


def test_an_engine_that_does_not_start_is_one_breach(tmp_path: Path) -> None:
    breaches = asyncio.run(check_engine(case(tmp_path, exit_at_start=True)))
    assert [breach.clause for breach in breaches] == [STARTS.number]
    assert "told to exit at start" in breaches[0].problem

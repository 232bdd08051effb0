"""The cache kit finds nothing wrong with the fake transfer, and each clause catches a transfer that breaks it."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from viiwork_core.contracts.cache import CacheFile, Saved, SegmentKind, SessionRef
from viiwork_core.contracts.engine import Address, Spec
from viiwork_core.errors import CacheRefused, CacheUnsupported, EngineRefused
from viiwork_core.testing.cache_kit import CACHE_CLAUSES, CacheCase, check_cache
from viiwork_core.testing.clauses import judge
from viiwork_core.testing.engine_kit import kit_context
from viiwork_core.testing.fake_model import HEADER_BYTES
from viiwork_core.testing.fake_plugin import FakeCacheTransfer, FakeEngine, FakeOptions

TURN_WORDS = 600
"""Shorter than the kit's own: what the fake engine does does not depend on the length."""


def case(folder: Path, transfer: type[FakeCacheTransfer] = FakeCacheTransfer) -> CacheCase:
    models = [folder / name for name in ("one", "two")]
    for model in models:
        model.write_text(model.name)
    (folder / "caches").mkdir()
    spec = Spec(model="tiny", index=0, backends=1, path=models[0], context=4096, parallel=2)
    context = kit_context(folder)
    return CacheCase(
        FakeEngine, transfer, FakeOptions(), spec, models[1], folder / "caches", context, turn_words=TURN_WORDS
    )


class OfAnother(FakeCacheTransfer):
    engine = "other"


class KnowsThePort(FakeCacheTransfer):
    async def fingerprint(self, spec: Spec, address: Address) -> Mapping[str, str]:
        return {**await super().fingerprint(spec, address), "port": str(spec.port)}


class KnowsNoModel(FakeCacheTransfer):
    async def fingerprint(self, spec: Spec, address: Address) -> Mapping[str, str]:
        return {"format": "fake-kv 1"}


class SavesNothing(FakeCacheTransfer):
    async def save(self, spec: Spec, address: Address, session: SessionRef, name: str) -> Saved:
        try:
            return await super().save(spec, address, session, name)
        except EngineRefused:
            return Saved(tokens=0, bytes=0)


class RestoresNothing(FakeCacheTransfer):
    async def restore(self, spec: Spec, address: Address, session: SessionRef, name: str) -> int:
        return 1000


class Distorts(FakeCacheTransfer):
    """All tokens are there, with the state of another context."""

    async def restore(self, spec: Spec, address: Address, session: SessionRef, name: str) -> int:
        assert spec.cache_dir is not None
        path = spec.cache_dir / name
        content = bytearray(path.read_bytes())
        content[HEADER_BYTES + 4] ^= 1
        path.write_bytes(content)
        return await super().restore(spec, address, session, name)


class Miscounts(FakeCacheTransfer):
    async def save(self, spec: Spec, address: Address, session: SessionRef, name: str) -> Saved:
        saved = await super().save(spec, address, session, name)
        return replace(saved, tokens=saved.tokens + 100)


class ForgetsTheHeader(FakeCacheTransfer):
    async def save(self, spec: Spec, address: Address, session: SessionRef, name: str) -> Saved:
        saved = await super().save(spec, address, session, name)
        return replace(saved, bytes=saved.bytes - HEADER_BYTES)


class LeavesAGap(FakeCacheTransfer):
    def read(self, path: Path) -> CacheFile:
        file = super().read(path)
        return replace(file, segments=tuple(one for one in file.segments if one.kind is SegmentKind.ROWS))


class StopsShort(FakeCacheTransfer):
    def read(self, path: Path) -> CacheFile:
        file = super().read(path)
        return replace(file, segments=file.segments[:1])


class TakesCutFiles(FakeCacheTransfer):
    def read(self, path: Path) -> CacheFile:
        try:
            return super().read(path)
        except CacheRefused:
            return CacheFile(tokens=None, ids=None, segments=())

    async def restore(self, spec: Spec, address: Address, session: SessionRef, name: str) -> int:
        try:
            return await super().restore(spec, address, session, name)
        except EngineRefused:
            return 0


class HoldsAll(FakeCacheTransfer):
    async def holds(self, spec: Spec, address: Address, session: SessionRef) -> int | None:
        return 1_000_000


class CoversAll(FakeCacheTransfer):
    async def covers(self, spec: Spec, address: Address, file: CacheFile, path: str, body: bytes) -> int | None:
        return file.tokens


class CoversNothing(FakeCacheTransfer):
    async def covers(self, spec: Spec, address: Address, file: CacheFile, path: str, body: bytes) -> int | None:
        return 0


class GivesUpForOneSession(FakeCacheTransfer):
    async def save(self, spec: Spec, address: Address, session: SessionRef, name: str) -> Saved:
        try:
            return await super().save(spec, address, session, name)
        except EngineRefused as error:
            raise CacheUnsupported(error.message) from error


BROKEN: list[tuple[int, type[FakeCacheTransfer]]] = [
    (1, OfAnother),
    (2, KnowsThePort),
    (3, KnowsNoModel),
    (4, SavesNothing),
    (5, RestoresNothing),
    (5, Distorts),
    (6, RestoresNothing),
    (7, Miscounts),
    (7, ForgetsTheHeader),
    (8, LeavesAGap),
    (8, StopsShort),
    (9, TakesCutFiles),
    (10, HoldsAll),
    (11, CoversAll),
    (11, CoversNothing),
    (12, TakesCutFiles),
    (13, GivesUpForOneSession),
]


def test_the_fake_transfer_keeps_all_clauses(tmp_path: Path) -> None:
    assert asyncio.run(check_cache(case(tmp_path))) == []


def test_clauses_are_numbered_from_one() -> None:
    assert [one.number for one in CACHE_CLAUSES] == list(range(1, len(CACHE_CLAUSES) + 1))


def test_each_clause_has_a_transfer_that_breaks_it() -> None:
    assert {number for number, _ in BROKEN} == {one.number for one in CACHE_CLAUSES}


@pytest.mark.parametrize(("number", "transfer"), BROKEN)
def test_a_broken_transfer_is_found(tmp_path: Path, number: int, transfer: type[FakeCacheTransfer]) -> None:
    clause = next(one for one in CACHE_CLAUSES if one.number == number)
    breaches = asyncio.run(judge(clause, case(tmp_path, transfer)))
    assert [breach.clause for breach in breaches] == [number]
    assert breaches[0].problem
    assert "TypeError" not in breaches[0].problem, "it is broken in another way than is meant"

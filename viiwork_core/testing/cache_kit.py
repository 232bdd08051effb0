"""Does a cache transfer keep the contract? Numbered clauses, each a plain async function over a CacheCase.

    case = CacheCase(engine=..., transfer=..., options=..., spec=spec, other_model=path, folder=tmp_path, context=...)
    assert not await check_cache(case)

The kit starts the engine itself, twice for the clauses that move a cache. It sends a session's key in
Wire.session_header and its slot in Wire.slot_field, where the engine has them, as viiwork does.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import anyio.to_thread

from viiwork_core.contracts.cache import CacheFile, CacheTransfer, Saved, SessionRef
from viiwork_core.contracts.context import Context
from viiwork_core.contracts.engine import Engine, Spec
from viiwork_core.contracts.options import PluginOptions
from viiwork_core.errors import CacheRefused, CacheUnsupported, EngineRefused
from viiwork_core.testing.clauses import Breach, Clause, Verdict, breaches, judge, require, verdict
from viiwork_core.testing.conversation import CHAT, Answer, Message, Talk, Usage, follow_up, opening
from viiwork_core.testing.servers import READY_LIMIT, kit_context, launched

__all__ = [
    "CACHE_CLAUSES",
    "Breach",
    "CacheCase",
    "Clause",
    "Verdict",
    "check_cache",
    "examine_cache",
    "judge",
    "kit_context",
]

TURN_WORDS = 1500
NEXT_WORDS = 30
REUSED_SHARE = 0.9
FILE = "kit-session"
STRANGER = SessionRef(key="0ddba11" * 4, slot=0)


@dataclass(frozen=True)
class CacheCase:
    """One cache transfer class and the engine that it serves, with everything that the clauses need to try them."""

    engine: type[Engine]
    transfer: type[CacheTransfer]
    options: PluginOptions
    spec: Spec
    """With room for 2,000 tokens a slot. Port and cache_dir are chosen by the kit."""

    other_model: Path
    """Another model of the same shape, for Spec.path."""

    folder: Path
    """An empty folder for cache files."""

    context: Context
    turn_words: int = TURN_WORDS
    ready_within: float = READY_LIMIT

    def opening(self, seed: int) -> list[Message]:
        return opening(self.turn_words, seed=seed)

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[CacheTransfer]:
        """A fresh, open instance of the transfer."""
        async with self.transfer(self.options, self.context) as transfer:
            yield transfer

    @asynccontextmanager
    async def instance(self, name: str) -> AsyncIterator[Instance]:
        """A running engine with a transfer and a cache folder of its own; the same name has the same folder."""
        folder = self.folder / name
        folder.mkdir(mode=0o700, exist_ok=True)
        spec = replace(self.spec, cache_dir=folder)
        async with (
            self.engine(self.options, self.context) as engine,
            self.opened() as transfer,
            launched(engine, spec, ready_within=self.ready_within) as process,
        ):
            yield Instance(transfer, process.spec, Talk(process.spec, engine.wire, process.address))


@dataclass(frozen=True)
class Instance:
    """One running engine and its transfer."""

    transfer: CacheTransfer
    spec: Spec
    talk: Talk

    @property
    def file(self) -> Path:
        assert self.spec.cache_dir is not None
        return self.spec.cache_dir / FILE

    async def save(self, session: SessionRef) -> Saved:
        return await self.transfer.save(self.spec, self.talk.address, session, FILE)

    async def restore(self, session: SessionRef) -> int:
        return await self.transfer.restore(self.spec, self.talk.address, session, FILE)

    async def holds(self, session: SessionRef) -> int | None:
        return await self.transfer.holds(self.spec, self.talk.address, session)

    async def covers(self, file: CacheFile, messages: list[Message]) -> int | None:
        body = json.dumps({"model": self.talk.wire.model or self.spec.model, "messages": messages, "max_tokens": 16})
        return await self.transfer.covers(self.spec, self.talk.address, file, CHAT, body.encode())

    async def read(self) -> CacheFile:
        return await anyio.to_thread.run_sync(self.transfer.read, self.file)


def session(number: int, slot: int = 0) -> SessionRef:
    """A session's name, another for each number."""
    return SessionRef(key=f"{number:032x}", slot=slot)


def usage_of(answer: Answer) -> Usage:
    """Raises AssertionError when the answer has no usage."""
    assert answer.usage is not None, f"the answer has no usage: {answer.raw[-300:]}"
    return answer.usage


async def names_its_engine(case: CacheCase) -> None:
    require(case.transfer.engine == case.engine.name, f"{case.transfer.engine!r} is not {case.engine.name!r}")


async def fingerprint_is_stable(case: CacheCase) -> None:
    here = replace(case.spec, port=4001, index=0, cache_dir=case.folder / "here")
    there = replace(case.spec, port=4002, index=1, cache_dir=case.folder / "there")
    first, second = await _fingerprints(case, here, there)
    require(first, "it is empty")
    require(first == second, f"another port, index and folder changed it: {_differences(first, second)}")


async def fingerprint_knows_the_model(case: CacheCase) -> None:
    ours, theirs = await _fingerprints(case, case.spec, replace(case.spec, path=case.other_model))
    require(ours != theirs, "another model has the same fingerprint")


async def _fingerprints(case: CacheCase, first: Spec, second: Spec) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """Of two backends, both asked at one that runs, so that only what they are started with differs."""
    async with case.instance("asked") as asked, case.opened() as transfer:
        address = asked.talk.address
        return await transfer.fingerprint(first, address), await transfer.fingerprint(second, address)


def _differences(first: Mapping[str, str], second: Mapping[str, str]) -> list[str]:
    return sorted(name for name in {*first, *second} if first.get(name) != second.get(name))


async def unknown_session_is_refused(case: CacheCase) -> None:
    async with case.instance("fresh") as fresh:
        try:
            saved = await fresh.save(STRANGER)
        except EngineRefused:
            return
    raise AssertionError(f"a save of a session that was never there returned {saved}")


async def a_session_moves(case: CacheCase) -> None:
    """The next turn on the other engine reuses what was moved, and says what the first engine says."""
    here, there = session(1), session(1, slot=case.spec.parallel - 1)
    async with case.instance("a") as a, case.instance("b") as b:
        first = await a.talk.turn(messages := case.opening(seed=21), here)
        await a.save(here)
        await anyio.to_thread.run_sync(shutil.copyfile, a.file, b.file)
        restored = await b.restore(there)
        messages = follow_up(messages, first, NEXT_WORDS, seed=22)
        moved = await b.talk.turn(messages, there)
        stayed = await a.talk.turn(messages, here)
    require(restored > 0, f"restore says that it holds {restored} tokens")
    _check_reuse(moved)
    require(moved.text == stayed.text, f"the moved session goes on with {moved.text!r}, the other {stayed.text!r}")


def _check_reuse(answer: Answer) -> None:
    usage = usage_of(answer)
    enough = usage.cached >= REUSED_SHARE * usage.prompt
    require(enough, f"the next turn reused {usage.cached} of {usage.prompt} tokens")


async def survives_a_restart(case: CacheCase) -> None:
    async with case.instance("restarted") as before:
        first = await before.talk.turn(messages := case.opening(seed=31), session(2))
        await before.save(session(2))
    async with case.instance("restarted") as after:
        await after.restore(session(2))
        _check_reuse(await after.talk.turn(follow_up(messages, first, NEXT_WORDS, seed=32), session(2)))


async def file_is_what_was_said(case: CacheCase) -> None:
    async with case.instance("file") as one:
        usage = usage_of(await one.talk.turn(case.opening(seed=41), session(3)))
        saved = await one.save(session(3))
        file, size = await one.read(), one.file.stat().st_size
    require(saved.bytes == size, f"save says {saved.bytes} bytes, and the file has {size}")
    held = range(usage.prompt, usage.prompt + usage.completion + 1)
    require(saved.tokens in held, f"save says {saved.tokens} tokens after a turn of {usage}")
    require(file.tokens in {None, saved.tokens}, f"save says {saved.tokens} tokens, and read {file.tokens}")
    ids = file.ids
    require(
        ids is None or len(ids) == saved.tokens, f"save says {saved.tokens} tokens, and read has {len(ids or ())} ids"
    )


async def segments_cover_the_file(case: CacheCase) -> None:
    async with case.instance("segments") as one:
        await one.talk.turn(case.opening(seed=51), session(4))
        await one.save(session(4))
        file, size = await one.read(), one.file.stat().st_size
    end = 0
    for segment in file.segments:
        require(segment.offset == end, f"a segment starts at {segment.offset}, the one before ends at {end}")
        require(segment.length > 0, f"a segment at {segment.offset} has {segment.length} bytes")
        end += segment.length
    require(end == size, f"the segments end at {end}, the file at {size}")


async def a_cut_file_is_refused(case: CacheCase) -> None:
    """By read(), or else by the engine; either way the engine lives on and answers."""
    async with case.instance("cut") as one:
        first = await one.talk.turn(messages := case.opening(seed=61), session(5))
        await one.save(session(5))
        whole = one.file.read_bytes()
        for size in (0, 1, 7, len(whole) // 2, len(whole) - 1):
            one.file.write_bytes(whole[:size])
            require(await _refuses(one), f"{size} of {len(whole)} bytes are accepted")
        answer = await one.talk.turn(follow_up(messages, first, NEXT_WORDS, seed=62), session(5))
        require(answer.text, "the engine writes nothing after it was given a damaged file")


async def _refuses(one: Instance) -> bool:
    try:
        await one.read()
        await one.restore(session(5))
    except (CacheRefused, EngineRefused):
        return True
    return False


async def holds_is_plausible(case: CacheCase) -> None:
    async with case.instance("holds") as one:
        usage = usage_of(await one.talk.turn(case.opening(seed=71), session(6)))
        held = await one.holds(session(6))
    most = usage.prompt + usage.completion
    require(held is None or usage.prompt <= held <= most, f"holds {held} tokens after a turn of {usage}")


async def covers_is_plausible(case: CacheCase) -> None:
    """All of the file for the conversation's next turn, and little for another conversation; or None."""
    async with case.instance("covers") as one:
        first = await one.talk.turn(messages := case.opening(seed=81), session(7))
        await one.save(session(7))
        file = await one.read()
        ours = await one.covers(file, follow_up(messages, first, NEXT_WORDS, seed=82))
        theirs = await one.covers(file, case.opening(seed=83))
    most = usage_of(first).prompt + usage_of(first).completion
    require(
        ours is None or REUSED_SHARE * most <= ours <= most, f"covers says {ours} of {most} tokens for the next turn"
    )
    require(theirs is None or theirs < most / 2, f"covers says {theirs} of {most} tokens for another conversation")


async def a_missing_file_is_refused(case: CacheCase) -> None:
    async with case.instance("missing") as one:
        first = await one.talk.turn(messages := case.opening(seed=91), session(8))
        try:
            restored = await one.restore(session(8))
        except (CacheRefused, EngineRefused):
            restored = -1
        require(restored < 0, f"a file that is not there is accepted, with {restored} tokens")
        answer = await one.talk.turn(follow_up(messages, first, NEXT_WORDS, seed=92), session(8))
        require(answer.text, "the engine writes nothing after it was asked for a file that is not there")


async def a_refusal_is_of_one_session(case: CacheCase) -> None:
    """CacheUnsupported ends the sharing of the model: it is not for a session or a file that is not there."""
    async with case.instance("refusing") as one:
        for what, action in (("save", one.save), ("restore", one.restore)):
            try:
                await action(STRANGER)
            except CacheUnsupported as error:
                raise AssertionError(f"a {what} of what is not there is CacheUnsupported: {error.message}") from error
            except (CacheRefused, EngineRefused):
                continue


CACHE_CLAUSES: tuple[Clause[CacheCase], ...] = (
    Clause(1, "it names the engine that it serves", names_its_engine),
    Clause(2, "the fingerprint does not depend on port, index and folder", fingerprint_is_stable),
    Clause(3, "another model has another fingerprint", fingerprint_knows_the_model),
    Clause(4, "a save of an unknown session is refused", unknown_session_is_refused),
    Clause(5, "a session moves to another engine, and goes on there as here", a_session_moves),
    Clause(6, "a file can be restored after a restart", survives_a_restart),
    Clause(7, "the file is as long, and holds as many tokens, as save says", file_is_what_was_said),
    Clause(8, "the segments follow each other from byte 0 to the end", segments_cover_the_file),
    Clause(9, "a file that is cut short is refused, and harms nothing", a_cut_file_is_refused),
    Clause(10, "holds says None, or what the last turn left", holds_is_plausible),
    Clause(11, "covers says None, or what a prompt shares with the file", covers_is_plausible),
    Clause(12, "a file that is not there is refused, and harms nothing", a_missing_file_is_refused),
    Clause(13, "one session that is refused does not end the sharing of all", a_refusal_is_of_one_session),
)


async def examine_cache(case: CacheCase) -> list[Verdict]:
    """A verdict on each clause, in the clauses' order. Starts about a dozen processes, two at once."""
    return [await verdict(clause, case) for clause in CACHE_CLAUSES]


async def check_cache(case: CacheCase) -> list[Breach]:
    """Check all clauses and return what is wrong, in the clauses' order."""
    return breaches(await examine_cache(case))

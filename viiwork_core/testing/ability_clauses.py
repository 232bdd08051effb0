"""The engine kit's clauses about times, capabilities, and clients that leave."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import anyio

from viiwork_core.contracts.cache import SessionRef
from viiwork_core.contracts.capabilities import Advises, Recognizes, Versioned, WarmsUp
from viiwork_core.contracts.engine import Vendor
from viiwork_core.contracts.recognition import FolderListing, FoundModel
from viiwork_core.engines.calls import VERSION
from viiwork_core.engines.listener import free_port
from viiwork_core.testing.clauses import Clause, require
from viiwork_core.testing.conversation import Talk, opening
from viiwork_core.testing.engine_case import EngineCase, prepare

KEY = "face" * 8
ENDLESS = 1000
"""Tokens of an answer that nobody waits for."""


async def times_are_seconds(case: EngineCase) -> None:
    for name in ("startup_timeout", "stop_timeout"):
        _check_seconds(name, getattr(case.engine, name))
        require(getattr(case.engine, name) > 0, f"{name} is 0")
    async with case.opened() as engine:
        if isinstance(engine, WarmsUp):
            first, second = engine.warm_up(), engine.warm_up()
            _check_seconds("warm_up()", first)
            require(first == second, f"warm_up() says {first}, and when asked again {second}")


def _check_seconds(what: str, value: float) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    require(number and math.isfinite(value) and value >= 0, f"{what} is {value!r}")


async def advice_is_sentences(case: EngineCase) -> None:
    spec = replace(case.spec, port=free_port())
    async with case.opened() as engine:
        await prepare(engine, spec)
        engine.launch(spec)
        if isinstance(engine, Advises):
            _check_sentences(await engine.advice(spec))


def _check_sentences(advice: Sequence[str]) -> None:
    require(not isinstance(advice, str), f"advice is one text, and should be a sequence of sentences: {advice!r}")
    for one in advice:
        require(isinstance(one, str) and one.strip(), f"a sentence of the advice is {one!r}")
        require("\n" not in one, f"a sentence of the advice has several lines: {one!r}")


async def version_is_short(case: EngineCase) -> None:
    async with case.opened() as engine:
        if isinstance(engine, Versioned):
            version = await engine.version(case.live)
            require(version is None or VERSION.fullmatch(version), f"version() says {version!r}")


async def a_client_that_leaves_frees_its_slot(case: EngineCase) -> None:
    """Where the engine tells what is busy; one that drains is read to its end by the core instead."""
    if case.wire.drain_on_abort:
        return
    talk = Talk(case.spec, case.wire, case.live)
    await talk.leave(opening(20, seed=12), SessionRef(KEY, 0), within=case.settle_within, max_tokens=ENDLESS)
    async with case.opened() as engine:
        load = await engine.load(case.spec, case.live)
        with anyio.move_on_after(case.settle_within):
            while load.busy:
                await anyio.sleep(0.02)
                load = await engine.load(case.spec, case.live)
    require(not load.busy, f"{case.settle_within:g} s after its only client has left: {load}")


async def models_are_known_by_sight(case: EngineCase) -> None:
    """The case's own model, and nothing that raises in a folder of anything."""
    engine, path = case.engine, case.spec.path
    if not issubclass(engine, Recognizes):
        return
    folder = case.context.state_dir / "recognised"
    folder.mkdir(exist_ok=True)
    require(not list(engine.recognize(FolderListing(folder, {}))), "it finds a model in an empty folder")
    if path is not None and path.exists():
        listing = _listing(path if path.is_dir() else path.parent)
        found = list(engine.recognize(listing))
        _check_found(found, listing)
        usable = [one.path for one in found if not one.problem]
        require(path in usable, f"it does not know its own model {path.name}: {found}")
        for damage in (b"", b"GGUF", b"{", b"\0" * 4096):
            _check_found(list(engine.recognize(_damaged(folder, listing, damage))), FolderListing(folder, {}))


async def images_are_dockerfiles(case: EngineCase) -> None:
    """A text that begins as one does and ends in the command `viiwork`, or None; the same when asked again."""
    engine = case.engine
    if not issubclass(engine, Recognizes):
        return
    for vendor in Vendor:
        text = engine.dockerfile(vendor)
        require(text is None or isinstance(text, str), f"dockerfile({vendor}) is {text!r}")
        require(text == engine.dockerfile(vendor), f"dockerfile({vendor}) says something else when asked again")
        _check_dockerfile(vendor, text)


def _check_dockerfile(vendor: Vendor, text: str | None) -> None:
    if text is None:
        return
    lines = [line.strip() for line in text.splitlines()]
    words = [line.split(maxsplit=1)[0].upper() for line in lines if line and not line.startswith("#")]
    require(words[:1] in (["FROM"], ["ARG"]), f"the Dockerfile for {vendor} begins with {words[:1]}")
    require("FROM" in words, f"the Dockerfile for {vendor} has no FROM")
    commands = [line for line in lines if line.upper().startswith(("ENTRYPOINT", "CMD"))]
    require(any("viiwork" in line for line in commands), f"the command of the image for {vendor} is not viiwork")


def _listing(folder: Path) -> FolderListing:
    return FolderListing(folder, {one.name: one.stat().st_size for one in folder.iterdir() if one.is_file()})


def _damaged(folder: Path, like: FolderListing, content: bytes) -> FolderListing:
    """The same names, and no model behind them."""
    for name in like.files:
        (folder / name).write_bytes(content)
    return _listing(folder)


def _check_found(found: Sequence[FoundModel], listing: FolderListing) -> None:
    for one in found:
        require(isinstance(one, FoundModel), f"it finds {one!r}")
        require(one.path == listing.path or one.path.parent == listing.path, f"{one.path} is not in {listing.path}")
        require(bool(one.name) and not any(map(str.isspace, one.name)), f"a model's name is {one.name!r}")
        require(one.bytes >= 0, f"a model has {one.bytes} bytes")
        figures = (one.context, one.token_bytes)
        require(all(figure is None or figure > 0 for figure in figures), f"a figure that is not positive: {one}")


TIMES = Clause(22, "timeouts and warm-up are seconds", times_are_seconds)
ADVICE = Clause(23, "advice is sentences", advice_is_sentences)
VERSION_SAID = Clause(24, "a version is short and plain, or None", version_is_short)
LEAVING = Clause(
    25, "a client that leaves frees its slot, unless the engine drains", a_client_that_leaves_frees_its_slot
)

SIGHT = Clause(26, "its own model is known by its files, and no folder makes it raise", models_are_known_by_sight)
IMAGES = Clause(27, "an image's recipe is a Dockerfile whose command is viiwork, or None", images_are_dockerfiles)

UNSTARTED_ABILITIES: tuple[Clause[EngineCase], ...] = (TIMES, ADVICE, SIGHT, IMAGES)
STARTED_ABILITIES: tuple[Clause[EngineCase], ...] = (VERSION_SAID, LEAVING)

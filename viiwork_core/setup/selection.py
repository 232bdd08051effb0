"""The selection: the models that were asked for, and the layout that becomes of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from viiwork_core.contracts.capabilities import RunsOnCpu
from viiwork_core.contracts.engine import Engine, Vendor
from viiwork_core.contracts.recognition import FoundModel
from viiwork_core.errors import ConfigError
from viiwork_core.registry.registry import Registry
from viiwork_core.setup.answers import Answers, ModelAnswer
from viiwork_core.setup.hardware import Hardware
from viiwork_core.setup.layout import Layout, Line, contexts, names, propose
from viiwork_core.setup.scan import Recognised, Scan, scan


def on_cpu(registry: Registry) -> frozenset[str]:
    """The engines that need no GPU."""
    return frozenset(name for name in registry.names("engine") if issubclass(registry.engine(name), RunsOnCpu))


def sharing(registry: Registry) -> frozenset[str]:
    """The engines whose caches can move."""
    return frozenset(registry.names("cache"))


def selected(
    answers: Answers, scanned: Scan | None, hardware: Hardware, registry: Registry, engines: Mapping[str, type[Engine]]
) -> Layout:
    """What the answers ask for, laid out. Raises ConfigError, with a line for each model that is not what it says."""
    if answers.models is None:
        layout = propose(() if scanned is None else scanned.usable, hardware, on_cpu=on_cpu(registry))
        return replace(layout, lines=tuple(_shared(line, answers.kv_share, registry) for line in layout.lines))
    found, problems = list[Recognised](), list[str]()
    for index, answer in enumerate(answers.models):
        try:
            found.append(_recognised(answer, scanned, engines))
        except ConfigError as error:
            problems.append(f"models[{index}].path: {error.message}; {error.remedy}")
    if problems:
        raise ConfigError("\n".join(problems))
    called = [answer.name or name for answer, name in zip(answers.models, names(found), strict=True)]
    places = _places(answers.models, found, hardware, registry)
    pairs = zip(answers.models, found, called, strict=True)
    lines = [_answered(answer, one, name, places, hardware) for answer, one, name in pairs]
    groups = [answer.kv_share or answers.kv_share for answer in answers.models]
    shared = (_shared(line, group, registry) for line, group in zip(lines, groups, strict=True))
    return Layout(tuple(shared))


def _places(
    answers: Sequence[ModelAnswer], found: Sequence[Recognised], hardware: Hardware, registry: Registry
) -> dict[tuple[str, Path], Line]:
    """The proposal for these models, by engine and path. Cards that somebody chose are not proposed for another."""
    taken = {index for answer in answers for index in answer.gpus or ()}
    free = replace(hardware, cards=tuple(card for card in hardware.cards if card.index not in taken))
    open_ones = [one for answer, one in zip(answers, found, strict=True) if answer.gpus is None]
    lines = propose(open_ones, free if hardware.has_cards else hardware, on_cpu=on_cpu(registry)).lines
    return {(line.engine, line.model.path): line for line in lines}


def _shared(line: Line, group: str | None, registry: Registry) -> Line:
    return replace(line, share=group) if group is not None and line.engine in sharing(registry) else line


def _recognised(answer: ModelAnswer, scanned: Scan | None, engines: Mapping[str, type[Engine]]) -> Recognised:
    """The model at a path. An engine that is named takes also what it does not know by sight."""
    path = answer.path.absolute()
    known = scanned if scanned is not None and path.is_relative_to(scanned.folder) else None
    found = _at(path, answer.engine, known) or _at(path, answer.engine, _beside(path, engines))
    if found is not None:
        if found.model.problem:
            what, _, remedy = found.model.problem.partition("; ")
            raise ConfigError(f"{path}: {what}", remedy=remedy or "fetch it again")
        return found
    if answer.engine is None:
        what = "is no model that an installed engine knows" if path.exists() else "does not exist"
        raise ConfigError(f"{path} {what}", remedy="correct the path, or name its engine")
    size = path.stat().st_size if path.is_file() else 0
    return Recognised(answer.engine, FoundModel(path.stem.lower() or "model", path, size))


def _beside(path: Path, engines: Mapping[str, type[Engine]]) -> Scan | None:
    folder = path if path.is_dir() else path.parent
    return scan(folder, engines, depth=0) if folder.is_dir() else None


def _at(path: Path, engine: str | None, scanned: Scan | None) -> Recognised | None:
    for one in () if scanned is None else scanned.models:
        if one.model.path == path and engine in (None, one.engine):
            return one
    return None


def _answered(
    answer: ModelAnswer,
    one: Recognised,
    name: str,
    places: Mapping[tuple[str, Path], Line],
    hardware: Hardware,
) -> Line:
    """The proposal's line, with what was answered in place of it. Without a place: the least there is."""
    line = places.get((one.engine, one.model.path))
    if line is None:
        shared: tuple[int, ...] = (0,) if hardware.vendor is Vendor.APPLE and hardware.cards else ()
        line = Line(name, one.engine, one.model, contexts(one.model)[0], 1, shared, options=one.model.options)
    gpus = line.gpus if answer.gpus is None else answer.gpus
    # Cards that were chosen by hand hold one backend, unless it is said otherwise.
    each = line.gpus_per_backend if answer.gpus is None else max(1, len(gpus))
    return replace(
        line,
        name=name,
        context=answer.context or line.context,
        parallel=answer.parallel or line.parallel,
        gpus=gpus,
        gpus_per_backend=answer.gpus_per_backend or each,
        options={**line.options, **answer.options},
        on_card=hardware.has_cards and bool(gpus),
    )

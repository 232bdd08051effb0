"""Configuration and files: what is written, and whether what it names is there and whole."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from viiwork_core.cli.doctor.situation import Machine, Situation, ok, problem, split, warning
from viiwork_core.config.schema import Config
from viiwork_core.contracts.doctor import Finding
from viiwork_core.contracts.engine import Engine
from viiwork_core.errors import ConfigError
from viiwork_core.registry.options import ResolvedModel

PART: Final = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})(?P<kind>\.\w+)")
"""A part of a model that is spread over several files, however its format is called."""

LARGE: Final = 20 << 30
"""Bytes of a model that takes its time to load."""

LONG_S: Final = 45 * 60.0
"""What such a model's startup_timeout should be at least."""

_MEMORY = frozenset({"tmpfs", "ramfs"})
_GIB = 1 << 30


def refusals(error: ConfigError, file: Path | None) -> list[Finding]:
    """A configuration that cannot be used: a finding for each of its lines."""
    otherwise = error.remedy or f"correct {file or 'the configuration'}"
    return [problem(*split(line, otherwise)) for line in error.message.splitlines() if line.strip()]


async def configuration(situation: Situation) -> Sequence[Finding]:
    """What was read, and what of it means nothing."""
    machine = situation.machine
    return [] if machine is None else list(_read(machine))


def _read(machine: Machine) -> Iterator[Finding]:
    config, resolved = machine.config, machine.resolved
    models = ", ".join(f"{one.config.name} on {one.engine.name}" for one in resolved.models)
    sources = ", ".join(cls.name for cls, _ in resolved.discoveries)
    yield ok(
        f"node {config.node.name}, models: {models or 'none'}, policy: {resolved.policy.name}, "
        f"discovery: {sources or 'none'}"
    )
    for line in config.warnings:
        yield warning(*split(line, "remove the key"))
    for record in machine.registry.failed:
        what = f"the plugin {record.entry_point} failed to load: {record.reason}"
        yield warning(what, f"pip install --upgrade {record.distribution}, or name it in VIIWORK_BLOCK")
    yield from _sharing(config)


def _sharing(config: Config) -> Iterator[Finding]:
    for model in config.models:
        if model.kv_share is None:
            continue
        if config.mesh.network == "none" or config.mesh.open:
            what = f"the caches of {model.name} are not shared: that takes a mesh with a secret"
            yield warning(what, "give the mesh a secret, or remove kv_share")
        elif model.kv_share.min_tokens >= model.context:
            what = f"the caches of {model.name} are never saved: no conversation reaches kv_share.min_tokens"
            yield warning(what, f"set it below the context of {model.context} tokens")


async def files(situation: Situation) -> Sequence[Finding]:
    """The state folder, and the files of every model with all their parts."""
    if situation.machine is None:
        return []
    return await asyncio.to_thread(lambda machine: list(_files(machine)), situation.machine)


def _files(machine: Machine) -> Iterator[Finding]:
    yield from _state(machine.config)
    for model in machine.resolved.models:
        if model.config.path is not None:
            yield from _model(model, model.config.path)


def _state(config: Config) -> Iterator[Finding]:
    folder = config.node.state_dir
    place = next((one for one in (folder, *folder.parents) if one.exists()), folder)
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        yield problem(f"this user cannot write into {place}", "make it writable, or choose another node.state_dir")
        return
    yield ok(f"the state folder {folder} is {'there' if place == folder else 'made at the first start'}")
    shared = sum(model.kv_share.max_gib for model in config.models if model.kv_share)
    if not shared:
        return
    free = shutil.disk_usage(place).free / _GIB
    # As much for caches to be sent as for those that were received.
    if free < 2 * shared:
        what = f"kv_share may fill {2 * shared:g} GiB of {place}, and {free:.1f} GiB are free"
        yield warning(what, "lower kv_share.max_gib, or put node.state_dir on a larger disk")
    elif _kind_of(place) not in {*_MEMORY, ""}:
        yield ok(f"caches are written to a disk ({place}): a folder in memory (tmpfs) is faster and wears nothing")


def _kind_of(folder: Path) -> str:
    """The kind of file system; empty: this system does not say."""
    try:
        lines = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    except OSError:
        return ""
    places = {Path(words[1]): words[2] for words in lines}
    real = folder.resolve()
    return next((places[one] for one in (real, *real.parents) if one in places), "")


def _model(model: ResolvedModel, path: Path) -> Iterator[Finding]:
    name = model.config.name
    if not path.exists():
        yield problem(f"{name}: {path} does not exist", f"fetch it, or correct models[{name}].path")
        return
    parts = _parts(path)
    bad = [part for part in parts if not part.is_file()]
    if bad or not parts:
        missing = ", ".join(part.name for part in bad) or "any file"
        yield problem(f"{name}: {path if path.is_dir() else path.parent} lacks {missing}", "fetch all of the model")
        return
    unread = [part.name for part in parts if not os.access(part, os.R_OK)]
    if unread:
        yield problem(f"{name}: this user cannot read {', '.join(unread)}", "let the node's user read them")
        return
    size = sum(part.stat().st_size for part in parts)
    if not size:
        yield problem(f"{name}: {path} is empty", "fetch it again")
        return
    yield ok(f"{name}: {len(parts)} {'file' if len(parts) == 1 else 'files'}, {size / _GIB:.1f} GiB")
    patience = _patience(model.config.startup_timeout, model.engine)
    if size > LARGE and patience < LONG_S:
        what = f"{name}: {size / _GIB:.0f} GiB may take longer to load than {patience / 60:.0f} minutes"
        yield warning(what, f"set models[{name}].startup_timeout to 45m or more")


def _patience(configured: float | None, engine: type[Engine]) -> float:
    return engine.startup_timeout if configured is None else configured


def _parts(path: Path) -> list[Path]:
    """The files of a model: itself, all parts that its name speaks of, or all in its folder with theirs."""
    if not path.is_dir():
        return _with_parts(path)
    found = {part for file in path.iterdir() if file.is_file() for part in _with_parts(file)}
    return sorted(found)


def _with_parts(file: Path) -> list[Path]:
    name: Mapping[str, str] | None = match.groupdict() if (match := PART.fullmatch(file.name)) else None
    if name is None:
        return [file]
    count = int(name["count"])
    return [
        file.with_name(f"{name['stem']}-{number:05}-of-{name['count']}{name['kind']}") for number in range(1, count + 1)
    ]

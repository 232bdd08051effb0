"""How fast this node's models are, remembered over restarts in state_dir/perf.json."""

from __future__ import annotations

import asyncio
import hashlib
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Final

import msgspec
import structlog
from msgspec import Meta

from viiwork_core.atomic_file import write_atomically
from viiwork_core.clock import Clock
from viiwork_core.contracts.policy import Score
from viiwork_core.node.models import Models
from viiwork_core.node.plans import Planned
from viiwork_core.routing.scores import Baseline, Scores

SAVE_S: Final = 600.0
"""Seconds between two writings, where something has changed."""

SMALL: Final = 1 << 20
"""Bytes of a model's file up to which its content counts. Such a file holds settings, not weights."""

_Ms = Annotated[float, Meta(ge=0, le=1e9)]
_Rate = Annotated[float, Meta(gt=0, le=1e9)]

_log = structlog.get_logger("viiwork.node")


class _Saved(msgspec.Struct):
    overhead_ms: _Ms
    ms_per_1k: _Rate
    at: float
    """Unix seconds, for whoever reads the file."""

    key: str


class Speeds:
    """The scores of this node's models, and their file. On the data loop."""

    def __init__(self, models: Models, path: Path, clock: Clock) -> None:
        self.scores = Scores()
        self._models = models
        self._path = path
        self._clock = clock
        self._written: Mapping[str, Baseline] = {}
        self._turn = 0

    def open(self) -> None:
        """Read what an earlier run left. A file that cannot be read is logged, and the scores are measured again."""
        self._written = _read(self._path)
        self.scores.follow(_keys(self._models), self._written)

    async def follow(self) -> None:
        """The models are others, were changed, or are started again."""
        self._turn += 1
        turn = self._turn
        keys = await asyncio.to_thread(_keys, tuple(self._models))  # their files may lie on a slow disk
        if turn == self._turn:
            self.scores.follow(keys, self._written)

    def score(self, model: str) -> Score | None:
        """A model's score; None: not measured, or not one of this node's."""
        return self.scores.score(model, self._clock.monotonic())

    async def run(self) -> None:
        """Write the file now and then, and when cancelled."""
        try:
            while True:
                await asyncio.sleep(SAVE_S)
                self.save()
        finally:
            self.save()

    def save(self) -> None:
        """Write the file, if what it says has changed."""
        baselines = self.scores.baselines()
        if not baselines or baselines == self._written:
            return
        at = self._clock.wall()
        saved = {
            name: _Saved(one.score.overhead_ms, one.score.ms_per_1k, at, one.key) for name, one in baselines.items()
        }
        try:
            # On the data loop, which must not wait for a disk; what a power cut loses is measured again.
            write_atomically(self._path, msgspec.json.format(msgspec.json.encode(saved)), mode=0o666, settled=False)
        except OSError as error:
            _log.warning("scores not written", path=str(self._path), reason=str(error))
            return
        self._written = baselines


def speed_key(model: Planned) -> str:
    """Digest of what a model's speed depends on: engine, its options, file, cards, arguments and environment.

    Blocking: it looks at the file.
    """
    told = [
        (
            type(backend.engine).__name__,
            repr(backend.engine.options),
            str(backend.spec.path),
            _content(backend.spec.path),
            backend.spec.gpus,
            backend.spec.parallel,
            backend.spec.args,
            sorted(backend.spec.env.items()),
        )
        for backend in model.backends
    ]
    return hashlib.sha256(repr(told).encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _keys(models: Iterable[Planned]) -> dict[str, str]:
    return {model.name: speed_key(model) for model in models}


def _content(path: Path | None) -> str:
    """What tells a file from one that takes its place: the digest of a small one, else size and time of change."""
    if path is None:
        return ""
    try:
        found = path.stat()
        if stat.S_ISREG(found.st_mode) and found.st_size <= SMALL:
            return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""  # the start will say why
    return f"{found.st_size} {found.st_mtime_ns}"


def _read(path: Path) -> dict[str, Baseline]:
    try:
        saved = msgspec.json.decode(path.read_bytes(), type=dict[str, _Saved])
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        _log.warning("scores are measured anew", path=str(path), reason=str(error))
        return {}
    return {name: Baseline(Score(one.overhead_ms, one.ms_per_1k), one.key) for name, one in saved.items()}

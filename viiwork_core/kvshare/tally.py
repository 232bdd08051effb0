"""The tally: what moving caches did and took, by model, since the start of the node. On the data loop."""

from __future__ import annotations

import statistics
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from viiwork_core.clock import Clock
from viiwork_core.kvshare.planner import Warmth
from viiwork_core.kvshare.switches import Switch

GIB: Final = 1 << 30
SAMPLES: Final = 32
FRESH_S: Final = 900.0
"""Seconds for which a measured move counts: a rate that forbids imports must not stand for ever, since nothing is
measured while it does."""

STALL_S_PER_GIB: Final = 1.0
"""What a save takes of an engine before one was measured."""

LARGE: Final = 64 << 20
"""Bytes from which on a save's time is that of its bytes."""

RESULTS: Final = (
    *("saved", "sent", "failed", "dropped", "received", "refused"),
    *("imported", "useless", "import_failed"),
)
"""What is counted in pieces."""

UNKNOWN: Final = "unknown"


@dataclass(frozen=True, slots=True)
class _Sample:
    at: float
    seconds: float
    bytes: int
    tokens: int


@dataclass(slots=True)
class Counts:
    """One model's."""

    saved: int = 0
    sent: int = 0
    failed: int = 0
    """Not sent to the end, or not taken by the other side."""

    dropped: int = 0
    """Not begun: replaced by a newer turn, or given up for want of room."""

    received: int = 0
    refused: int = 0
    """That others sent and this node did not take."""

    imported: int = 0
    useless: int = 0
    """Imported, and the turn reused less than was promised."""

    import_failed: int = 0
    sent_bytes: int = 0
    """Handed to the network, those of failed transfers too."""

    sent_file_bytes: int = 0
    """Of the files that were sent, as they lie on the disk: over these, `sent_bytes` is the share that travelled."""

    received_bytes: int = 0
    save_seconds: float = 0.0
    send_seconds: float = 0.0
    import_seconds: float = 0.0


@dataclass(slots=True)
class _Model:
    counts: Counts = field(default_factory=Counts)
    turns: Counter[tuple[str, str]] = field(default_factory=Counter)
    imports: deque[_Sample] = field(default_factory=lambda: deque(maxlen=SAMPLES))
    saves: deque[_Sample] = field(default_factory=lambda: deque(maxlen=SAMPLES))


class Tally:
    """Counts, and the rates that follow from them."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._models: dict[str, _Model] = {}
        self.warmths: Counter[tuple[str, str]] = Counter()
        """(model, warmth or "unknown") -> turns that followed an import."""

    def of(self, model: str) -> Counts:
        """A model's counts, to add to."""
        return self._of(model).counts

    def _of(self, model: str) -> _Model:
        return self._models.setdefault(model, _Model())

    @property
    def counts(self) -> Mapping[str, Counts]:
        """By model."""
        return {name: model.counts for name, model in self._models.items()}

    @property
    def turns(self) -> Mapping[tuple[str, str, str], int]:
        """(model, switch, reuse) -> turns of sessions that were not their first."""
        return {(name, *key): number for name, model in self._models.items() for key, number in model.turns.items()}

    @property
    def results(self) -> Mapping[tuple[str, str], int]:
        """(model, what became of them) -> replicas."""
        return {(name, one): getattr(counts, one) for name, counts in self.counts.items() for one in RESULTS}

    @property
    def sizes(self) -> Mapping[tuple[str, str], int]:
        """(model, sent, sent_file or received) -> bytes."""
        ways = ("sent", "sent_file", "received")
        return {(name, way): getattr(counts, f"{way}_bytes") for name, counts in self.counts.items() for way in ways}

    @property
    def times(self) -> Mapping[tuple[str, str], float]:
        """(model, save, send or import) -> seconds."""
        steps = ("save", "send", "import")
        return {
            (name, step): getattr(counts, f"{step}_seconds") for name, counts in self.counts.items() for step in steps
        }

    # What happens

    def turn(self, model: str, switch: Switch, warmth: Warmth | None) -> None:
        """A session's turn has ended here."""
        self._of(model).turns[str(switch), str(warmth or UNKNOWN)] += 1

    def imported(self, model: str, seconds: float, size: int, tokens: int) -> None:
        """A replica was put into an engine."""
        known = self._of(model)
        known.counts.imported += 1
        self._timed_import(known, seconds, size, tokens)

    def import_failed(self, model: str, seconds: float, size: int, tokens: int, *, late: bool) -> None:
        """It was not. `late`: for the time that it took, so that it is known to take at least that."""
        known = self._of(model)
        known.counts.import_failed += 1
        if late:
            self._timed_import(known, seconds, size, tokens)
        else:
            known.counts.import_seconds += seconds

    def _timed_import(self, known: _Model, seconds: float, size: int, tokens: int) -> None:
        known.counts.import_seconds += seconds
        known.imports.append(_Sample(self._clock.monotonic(), seconds, size, tokens))

    def saved(self, model: str, seconds: float, size: int, tokens: int) -> None:
        """A turn was saved."""
        known = self._of(model)
        known.counts.saved += 1
        known.counts.save_seconds += seconds
        known.saves.append(_Sample(self._clock.monotonic(), seconds, size, tokens))

    # What follows

    def import_s(self, model: str, size: int) -> float | None:
        """What importing a file of so many bytes takes; None: not measured of late."""
        rates = [one.seconds / max(1, one.bytes) for one in self._fresh(model)]
        return statistics.median(rates) * size if rates else None

    def import_ms_per_1k(self, model: str) -> float | None:
        """Milliseconds that importing 1,000 tokens takes, the median of late; None: not measured."""
        rates = [1e6 * one.seconds / max(1, one.tokens) for one in self._fresh(model)]
        return statistics.median(rates) if rates else None

    def _fresh(self, model: str) -> list[_Sample]:
        known, now = self._models.get(model), self._clock.monotonic()
        return [one for one in known.imports if now - one.at < FRESH_S] if known else []

    def stall_s(self, model: str, tokens: int) -> float | None:
        """How long saving so many tokens holds up the engine's streams; None: no save has shown a token's size."""
        known = self._models.get(model)
        if known is None or not known.saves:
            return None
        size = tokens * statistics.median(one.bytes / max(1, one.tokens) for one in known.saves)
        rates = [one.seconds / one.bytes for one in known.saves if one.bytes >= LARGE]
        return size * (statistics.median(rates) if rates else STALL_S_PER_GIB / GIB)

    def told(self, model: str) -> dict[str, Any]:
        """A model's counts and rates for people and tools. What is not known is absent."""
        known = self._of(model)
        counts = {name: _short(getattr(known.counts, name)) for name in Counts.__dataclass_fields__}
        per_gib, turns = self.import_s(model, GIB), dict[str, dict[str, int]]()
        for (switch, reuse), number in sorted(known.turns.items()):
            turns.setdefault(switch, {})[reuse] = number
        rate = {} if per_gib is None else {"import_s_per_gib": _short(per_gib)}
        of = known.counts.sent_file_bytes
        share = {"sent_share": _short(known.counts.sent_bytes / of)} if of else {}
        return {**counts, **share, **rate, "turns": turns}


def _short(value: float) -> float:
    return value if isinstance(value, int) else round(value, 3)

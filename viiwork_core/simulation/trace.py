"""A trace: what clients really asked, as times, sizes and keyed hashes, without any text.

One JSON object a line: {"at", "session", "prompt_tokens", "answer_tokens", "seconds"}.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from viiwork_core.errors import ConfigError
from viiwork_core.simulation.workload import History, Prompt


class Record(msgspec.Struct, frozen=True):
    """One request. Further fields are ignored."""

    at: Annotated[float, Meta(ge=0)]
    """Seconds since the trace began."""

    session: Annotated[str, Meta(min_length=1, max_length=64)]
    prompt_tokens: Annotated[int, Meta(ge=1, le=1 << 40)]
    answer_tokens: Annotated[int, Meta(ge=0, le=1 << 40)]
    seconds: Annotated[float, Meta(ge=0)]
    """From the request to the end of its answer."""


_record = msgspec.json.Decoder(Record)


def read(path: Path) -> list[Record]:
    """The records of a trace, by time. Raises ConfigError that names the line."""
    try:
        return sorted(_records(path), key=lambda record: record.at)
    except OSError as error:
        raise ConfigError(f"trace {path}: {error}") from error


def _records(path: Path) -> Iterator[Record]:
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                yield _record.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                remedy = 'a line is {"at", "session", "prompt_tokens", "answer_tokens", "seconds"}'
                raise ConfigError(f"trace {path}, line {number}: {error}", remedy=remedy) from error


class RecordedAgent:
    """A session of a trace. It thinks as long as its client did, however fast the answers come now."""

    def __init__(self, number: int, records: list[Record]) -> None:
        self._records = records
        self._turn = 0
        self._history = History(number)
        self._context = 0

    @property
    def begins_at(self) -> float:
        """Seconds after which it sends its first prompt."""
        return self._records[0].at

    def next(self) -> Prompt | None:
        """The next prompt; None: it has none any more."""
        if self._turn >= len(self._records):
            return None
        record = self._records[self._turn]
        self._turn += 1
        # A prompt shorter than the context before was cut or compacted: no cache holds its beginning.
        anew = record.prompt_tokens < self._context
        before = None if anew or self._turn == 1 else self._context
        self._context = record.prompt_tokens + record.answer_tokens
        return self._history.prompt(
            self._turn, record.prompt_tokens, max(1, record.answer_tokens), before=before, anew=anew
        )

    def think(self) -> float:
        """Seconds until the next prompt."""
        if self._turn >= len(self._records):
            return 0.0
        before = self._records[self._turn - 1]
        return max(0.0, self._records[self._turn].at - before.at - before.seconds)


def agents(records: list[Record]) -> list[RecordedAgent]:
    """One agent for each session of a trace."""
    sessions: dict[str, list[Record]] = {}
    for record in records:
        sessions.setdefault(record.session, []).append(record)
    return [RecordedAgent(number, turns) for number, turns in enumerate(sessions.values())]

"""A turn of a session, as what moves its cache sees it."""

from __future__ import annotations

from dataclasses import dataclass

from viiwork_core.engines.slots import Reservation


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of a session on one backend, inside its reservation."""

    session: str
    """Keyed hash, hex."""

    reservation: Reservation
    path: str
    """The endpoint that was asked."""

    body: bytes
    """The request as the client sent it."""

    begins: bool = False
    """The first turn of a conversation that nobody named: it may well be the last."""

    continues: bool = False
    """An earlier turn is known to have been served somewhere."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one answer; None: the engine did not say."""

    prompt: int | None = None
    """The whole prompt, reused tokens included."""

    cached: int | None = None
    """Of the prompt, those that the engine reused."""

    completion: int | None = None

    @property
    def total(self) -> int | None:
        """Tokens of prompt and answer together."""
        return None if self.prompt is None or self.completion is None else self.prompt + self.completion

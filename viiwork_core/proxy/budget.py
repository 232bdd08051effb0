"""How many bytes of bodies the node holds at one time, so that clients cannot take its memory."""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType
from typing import Self

from viiwork_core.errors import BodiesFull

RETRY_AFTER_S = 2


class BodyBudget:
    """The bytes of all bodies, from their coming in to the end of their requests. On the data loop."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.used = 0

    def share(self) -> Share:
        """What one request holds; `with` gives it back at the end of the block."""
        return Share(self)

    def require(self, size: int) -> None:
        """Raises BodiesFull when `size` more bytes are too many now."""
        if self.used + size > self._limit:
            what = f"the bodies of all requests are at the limit of {self._limit} bytes"
            raise BodiesFull(what, remedy="try again, or raise api.max_inflight_bytes", retry_after=RETRY_AFTER_S)


@dataclass(slots=True)
class Share:
    """One request's part."""

    budget: BodyBudget
    size: int = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.budget.used -= self.size

    def announce(self, size: int) -> None:
        """A body of `size` bytes is to come. Raises BodiesFull before any of it is read.

        Only what has come counts, or clients who send nothing could keep out the others.
        """
        self.budget.require(size)

    def take(self, size: int) -> None:
        """`size` bytes have come. Raises BodiesFull."""
        self.budget.require(size)
        self.size += size
        self.budget.used += size

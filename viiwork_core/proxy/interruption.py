"""An interruption: what a timer or a watcher does to a task that waits for something else."""

from __future__ import annotations

import asyncio


class Interruption:
    """Cancels the task that makes one, and tells that cancellation from anybody else's.

    What asyncio.timeout does, less its timer: who makes one has a reason and a moment of its own.
    """

    __slots__ = ("_before", "_task", "over")

    def __init__(self) -> None:
        task = asyncio.current_task()
        assert task is not None, "only a task can be interrupted"
        self._task, self._before = task, task.cancelling()
        self.over = False
        """Whether it has come."""

    def come(self) -> None:
        """Cancel the task."""
        self.over = True
        self._task.cancel()

    def took(self, kind: type[BaseException] | None) -> bool:
        """Whether it came, and the task ends with `kind` for it alone: somebody else's cancellation goes on. To be
        asked once, when the task has stopped waiting."""
        return self.over and self._task.uncancel() <= self._before and kind is asyncio.CancelledError

"""What the core hands to a plugin object when it makes one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class CommandOutput:
    """What a short command left behind. `text` is stdout and stderr together, decoded with replacement."""

    returncode: int
    text: str


RunCommand = Callable[[Sequence[str]], Awaitable[CommandOutput]]
"""Runs a short command (a `--version`, a `--help`) to its end, 10 s at most, with the engine's clean environment.

Raises EngineRefused when it cannot be started or does not end in time. A plugin never starts a process itself.
"""

Digest = Callable[[Path], Awaitable[str]]
"""BLAKE3 of a file's bytes, or of a folder's files by relative name, as hex. Computed in a thread, and remembered by
path, size and modification time. Raises EngineRefused when it cannot be read."""


@dataclass(frozen=True, slots=True)
class Context:
    """The core's services for one plugin object."""

    node: str
    """This node's name."""

    state_dir: Path
    """A folder of this plugin's own that survives restarts, mode 0700. It exists."""

    run_command: RunCommand
    digest: Digest

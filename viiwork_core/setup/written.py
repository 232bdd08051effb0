"""A file that the wizard writes: whole, and as it is shown before that."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from viiwork_core.config.masks import MASK


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """One file, before and after it is on disk."""

    path: Path
    """Absolute."""

    text: str
    mode: int = 0o644
    secrets: tuple[str, ...] = ()
    """Parts of the text that nobody is to read on a screen."""

    def shown(self) -> str:
        """The text as it may be shown: whole, its secrets masked."""
        text = self.text
        # The longest first: a secret may contain another.
        for secret in sorted(filter(None, self.secrets), key=len, reverse=True):
            text = text.replace(secret, MASK)
        return text

"""Movability: whether restoring a model's caches is of any use, by what the turns after it reused. Pure.

Engines restore the caches of some models with success and then read the whole prompt anew: those with a sliding window
and those with recurrent layers.
"""

from __future__ import annotations

from typing import Final

USELESS: Final = 2
"""Restores that were of no use, after which a model that has shown nothing else is not moved any more."""

MOST: Final = 8
"""The same for a model that has shown before that it can be moved: clients may well change what was said."""


class Movability:
    """A credit by model and fingerprint: each use raises it, each useless restore takes from it, none left is off.

    A backend with other settings has another fingerprint, and begins anew.
    """

    def __init__(self) -> None:
        self._credit: dict[tuple[str, str], int] = {}

    def judged(self, model: str, fingerprint: str, *, useful: bool) -> bool:
        """A turn has shown what a restore was worth. Returns whether the model is off from now on."""
        credit = self._credit.get((model, fingerprint), USELESS)
        if credit <= 0:
            return False
        credit = min(MOST, credit + 1) if useful else credit - 1
        self._credit[model, fingerprint] = credit
        return credit == 0

    def off(self, model: str, fingerprint: str | None) -> bool:
        """Whether the model's caches are not moved any more."""
        return fingerprint is not None and self._credit.get((model, fingerprint), USELESS) <= 0

    def follow(self, model: str) -> None:
        """The model begins anew: its configuration has changed."""
        for key in [key for key in self._credit if key[0] == model]:
            del self._credit[key]

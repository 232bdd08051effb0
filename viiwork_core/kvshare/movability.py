"""Movability: whether restoring a model's caches is of any use, by what the turns after it reused. Pure.

Engines restore the caches of some models with success and then read the whole prompt anew: those with a sliding window
and those with recurrent layers. Others say at the first save or restore that they do no such thing.
"""

from __future__ import annotations

from typing import Final

USELESS: Final = 2
"""Restores that were of no use, after which a model that has shown nothing else is not moved any more."""

MOST: Final = 8
"""The same for a model that has shown before that it can be moved: clients may well change what was said."""


OF_NO_USE: Final = "restored caches of this model were not used, twice: a sliding window or recurrent layers"


class Movability:
    """A credit by model and fingerprint: each use raises it, each useless restore takes from it, none left is off.

    A backend with other settings has another fingerprint, and begins anew.
    """

    def __init__(self) -> None:
        self._credit: dict[tuple[str, str], int] = {}
        self._refused: dict[tuple[str, str], str] = {}
        """What the engine said of it."""

    def judged(self, model: str, fingerprint: str, *, useful: bool) -> bool:
        """A turn has shown what a restore was worth. Returns whether the model is off from now on."""
        credit = self._credit.get((model, fingerprint), USELESS)
        if credit <= 0:
            return False
        credit = min(MOST, credit + 1) if useful else credit - 1
        self._credit[model, fingerprint] = credit
        return credit == 0

    def unsupported(self, model: str, fingerprint: str, reason: str) -> bool:
        """The engine saves or restores none. Returns whether the model is off from now on, and was not before."""
        if self.off(model, fingerprint) is not None:
            return False
        self._refused[model, fingerprint] = reason
        return True

    def off(self, model: str, fingerprint: str | None) -> str | None:
        """Why the model's caches are not moved any more; None: they are."""
        if fingerprint is None:
            return None
        useless = self._credit.get((model, fingerprint), USELESS) <= 0
        return OF_NO_USE if useless else self._refused.get((model, fingerprint))

    def follow(self, model: str) -> None:
        """The model begins anew: its configuration has changed."""
        self._credit = {key: credit for key, credit in self._credit.items() if key[0] != model}
        self._refused = {key: reason for key, reason in self._refused.items() if key[0] != model}

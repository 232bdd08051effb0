"""Masks: secrets are made unreadable before anything is shown. They are found by the names that people give them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

MASK = "***"

_VARIABLE = re.compile(r"KEY|TOKEN|SECRET|PASSW|PASSPHRASE|CREDENTIAL", re.IGNORECASE)
_SECRET_WORDS = frozenset({"key", "token", "secret", "password", "passwd", "passphrase", "credential", "credentials"})
_PLACE_WORDS = frozenset({"env", "file", "path", "dir"})
"""Last words of names that say where a secret is."""

_USER_OF_A_URL = re.compile(r"(?<=://)[^/@\s]+(?=@)")
_SHORTEST = 6
"""Characters of a secret worth looking for; shorter ones are parts of too many words."""


class Masks:
    """Masks values that are named like a secret, and wherever they appear those of such variables in `environ`."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        named = (value for name, value in environ.items() if _VARIABLE.search(name))
        found = {value for value in named if len(value) >= _SHORTEST}
        # The longest first: a secret may contain another.
        self._secrets = sorted(found, key=len, reverse=True)

    def text(self, value: str) -> str:
        """A text without secrets of the environment, and without user and password in a URL."""
        for secret in self._secrets:
            value = value.replace(secret, MASK)
        return _USER_OF_A_URL.sub(MASK, value)

    def environment(self, env: Mapping[str, str]) -> dict[str, str]:
        """Variables, those that are named like a secret without their values."""
        return {name: MASK if _VARIABLE.search(name) else self.text(value) for name, value in env.items()}

    def arguments(self, args: Iterable[str]) -> list[str]:
        """A command line without the values of those --flags that are named like a secret."""
        return list(self._arguments(args))

    def values(self, value: Any) -> Any:
        """Plain data without the texts under keys that are named like a secret, however deep."""
        if isinstance(value, Mapping):
            return {key: self._entry(str(key), inner) for key, inner in value.items()}
        if isinstance(value, list | tuple):
            return [self.values(inner) for inner in value]
        return self.text(value) if isinstance(value, str) else value

    def _entry(self, key: str, value: Any) -> Any:
        return MASK if isinstance(value, str) and value and _is_a_secrets_name(key) else self.values(value)

    def _arguments(self, args: Iterable[str]) -> Iterator[str]:
        awaited = False
        for word in args:
            flag, equals, _ = word.partition("=")
            is_flag = flag.startswith("-")
            named = is_flag and _is_a_secrets_name(flag)
            if awaited and not is_flag:
                yield MASK
            else:
                yield f"{flag}={MASK}" if named and equals else self.text(word)
            awaited = named and not equals


def _is_a_secrets_name(name: str) -> bool:
    words = re.split(r"[^a-z0-9]+", name.strip("-").lower())
    return not _SECRET_WORDS.isdisjoint(words) and words[-1] not in _PLACE_WORDS

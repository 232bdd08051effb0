"""api.keys[]: what one entry of the list says."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from viiwork_core.config.blocks import Block
from viiwork_core.config.values import Tuple
from viiwork_core.security.keys import MAX_DAILY_TOKENS, MAX_MODELS, MAX_WEIGHT, NAME, ApiKey, read_hash


def _name(value: str) -> str:
    if not NAME.fullmatch(value):
        raise ValueError("must be 1 to 64 of the characters A-Z a-z 0-9 . _ -, the first no . or -")
    return value


def _hash(value: str) -> str:
    read_hash(value)
    return value


def _model(value: str) -> str:
    if not 1 <= len(value) <= 256 or any(character.isspace() or not character.isprintable() for character in value):
        raise ValueError("must be 1 to 256 characters without white space")
    return value


class ApiKeyConfig(Block):
    """A key that clients of this node may show. `viiwork key entry NAME` prints a token and such an entry."""

    name: Annotated[str, AfterValidator(_name)]
    """What logs and metrics call it; unique."""

    hash: Annotated[str, AfterValidator(_hash)]
    """"sha256:" and the SHA-256 of the token in hex. Never the token itself."""

    weight: Annotated[int, Field(ge=1, le=MAX_WEIGHT)] = 1
    """Its share where several keys wait for one model: 2 gets twice the turns of 1."""

    daily_tokens: Annotated[int, Field(ge=0, le=MAX_DAILY_TOKENS)] = 0
    """Tokens of prompts and answers a day (UTC), counted on all nodes; then requests are answered 429. 0: no limit."""

    models: Annotated[Tuple[Annotated[str, AfterValidator(_model)]], Field(max_length=MAX_MODELS)] = ()
    """Models and aliases that it may ask for; others are answered 403. Empty: all."""

    @property
    def key(self) -> ApiKey:
        """The key for the ring."""
        return ApiKey(self.name, read_hash(self.hash), self.weight, self.daily_tokens, self.models)

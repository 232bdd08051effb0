"""What a block of the configuration is: strict and frozen, with or without room for plugins' blocks."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from pydantic import BaseModel, ConfigDict
from pydantic_core import PydanticCustomError


class Block(BaseModel):
    """A block of core keys: an unknown one is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class OpenBlock(BaseModel):
    """A block that holds plugins' blocks beside the core's keys; pass 1 says which are allowed."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)

    @property
    def blocks(self) -> Mapping[str, Any]:
        """The plugins' blocks, unread, by name."""
        return MappingProxyType({name: value or {} for name, value in (self.model_extra or {}).items()})


def misplaced(keys: tuple[str | int, ...], what: str, remedy: str = "") -> PydanticCustomError:
    """An error of a whole block that is about one of its keys."""
    return PydanticCustomError("misplaced", "{what}", {"keys": keys, "what": what, "remedy": remedy})

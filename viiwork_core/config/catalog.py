"""api.catalog: how GET /api.json, the list of models that OpenCode reads, calls this node."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final

from pydantic import AfterValidator, Field, model_validator

from viiwork_core.config.blocks import Block
from viiwork_core.config.values import http_parts

PROVIDER_ID: Final = "viiwork"
PROVIDER_NAME: Final = " viiwork"
"""The blank puts it first in OpenCode's list."""


def _provider(value: str) -> str:
    if not re.fullmatch(r"[^\s/]{1,64}", value) or not value.isprintable():
        raise ValueError("must be 1 to 64 characters without white space and slash")
    return value


def _title(value: str) -> str:
    if not 1 <= len(value) <= 128 or not value.isprintable():
        raise ValueError("must be 1 to 128 printable characters")
    return value


def _base(value: str) -> str:
    parts = http_parts(value)
    if value and (parts is None or parts.query or parts.fragment or parts.username is not None):
        raise ValueError("must be an http or https URL, such as https://llm.example.org")
    return value.rstrip("/").removesuffix("/v1")


class CatalogConfig(Block):
    """GET /api.json, which OpenCode reads (docs/clients.md). It lists the models of this mesh alone."""

    enabled: bool = True
    """false: there is no such list."""

    provider_id: Annotated[str, AfterValidator(_provider)] = PROVIDER_ID
    """What OpenCode puts before a model's name and a slash."""

    provider_name: Annotated[str, AfterValidator(_title)] = PROVIDER_NAME
    """What OpenCode shows; the blank before it puts it first in its list."""

    base_url: Annotated[str, AfterValidator(_base), Field(title="URL")] = ""
    """Where clients reach the API, where that is not what they called it by, such as through a proxy. /v1 is added."""

    @model_validator(mode="before")
    @classmethod
    def _off_says_it_all(cls, data: Any) -> Any:
        return {"enabled": False} if isinstance(data, dict) and data.get("enabled") is False else data

"""The models that a node answers for, in the shapes that clients look for. All are made from the same records."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from viiwork_core.config.catalog import PROVIDER_ID, PROVIDER_NAME

UNKNOWN_CONTEXT = 8192
"""OpenCode wants a number."""

LONGEST_OUTPUT = 32768
STEP = 1024


@dataclass(frozen=True, slots=True)
class ModelRecord:
    """One model, under one name."""

    id: str
    owned_by: Literal["local", "peer", "pipeline", "alias"]
    context: int | None
    """Tokens that a request may have; None: not known."""

    target: str | None = None
    """What an alias stands for."""


def openai(records: Iterable[ModelRecord], created: int) -> dict[str, Any]:
    """GET /v1/models."""
    return {"object": "list", "data": [openai_entry(record, created) for record in records]}


def openai_entry(record: ModelRecord, created: int) -> dict[str, Any]:
    """One of its entries; also GET /v1/models/NAME. `created`: when this node opened, in Unix seconds. Clients want a
    number there, and of a model of another node no better one is known."""
    context = {} if record.context is None else {"max_model_len": record.context, "context_length": record.context}
    target = {} if record.target is None else {"target": record.target}
    return {"id": record.id, "object": "model", "created": created, "owned_by": record.owned_by, **target, **context}


def litellm(records: Iterable[ModelRecord]) -> dict[str, Any]:
    """GET /v1/model/info, as LiteLLM answers it."""
    return {"data": [_litellm_entry(record) for record in records]}


def _litellm_entry(record: ModelRecord) -> dict[str, Any]:
    context = {} if record.context is None else {"max_input_tokens": record.context}
    info = {**context, "mode": "chat", "supports_function_calling": True}
    return {"model_name": record.id, "litellm_params": {"model": record.id}, "model_info": info}


def opencode(
    records: Iterable[ModelRecord], base: str, provider_id: str = PROVIDER_ID, name: str = PROVIDER_NAME
) -> dict[str, Any]:
    """GET /api.json, as OpenCode reads it. `base`: this node's API as clients reach it, without /v1."""
    provider = {
        "id": provider_id,
        "name": name,
        "env": [],
        "npm": "@ai-sdk/openai-compatible",
        "api": f"{base}/v1",
        "models": {record.id: _opencode_entry(record) for record in records},
    }
    return {provider_id: provider}


def _opencode_entry(record: ModelRecord) -> dict[str, Any]:
    context = UNKNOWN_CONTEXT if record.context is None else record.context
    output = min(context // 4, LONGEST_OUTPUT)
    return {
        "id": record.id,
        "name": record.id if record.target is None else f"{record.id} -> {record.target}",
        "release_date": "",
        "attachment": False,
        "reasoning": False,
        "temperature": True,
        "tool_call": True,
        # A tiny context has no whole step, and none is no answer.
        "limit": {"context": context, "output": output // STEP * STEP or output},
        "modalities": {"input": ["text"], "output": ["text"]},
        "cost": {"input": 0, "output": 0},
    }


def unique(records: Sequence[ModelRecord]) -> list[ModelRecord]:
    """Each name once, sorted; of several records of one name the first in this order: local, peer, pipeline, alias."""
    order = ("local", "peer", "pipeline", "alias")
    found: dict[str, ModelRecord] = {}
    for record in sorted(records, key=lambda one: order.index(one.owned_by)):
        found.setdefault(record.id, record)
    return [found[name] for name in sorted(found)]

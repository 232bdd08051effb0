"""What is wrong between models that are right one by one."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from viiwork_core.config.model import ModelConfig
from viiwork_core.config.problems import Problem


def conflicts(data: Mapping[str, Any]) -> list[Problem]:
    """Names and GPUs that a document gives to two models. Models that are wrong by themselves do not count."""
    models = sound_models(data)
    return _names(models) + ([] if _one_chip(data) else _gpus(models))


def sound_models(data: Mapping[str, Any]) -> dict[int, ModelConfig]:
    """The models that are right by themselves, by their place in the document."""
    sound, models = {}, data.get("models")
    for index, model in enumerate(models if isinstance(models, list) else []):
        try:
            sound[index] = ModelConfig.model_validate(model)
        except ValidationError:
            continue
    return sound


def _one_chip(data: Mapping[str, Any]) -> bool:
    """Whether the only GPU is part of the chip, so that all models share it."""
    gpu = data.get("gpu")
    vendor = gpu.get("vendor", "auto") if isinstance(gpu, dict) else "auto"
    return vendor == "apple" or (vendor == "auto" and sys.platform == "darwin")


def _names(models: Mapping[int, ModelConfig]) -> list[Problem]:
    problems, owners = [], dict[str, int]()
    for index, model in models.items():
        if (first := owners.setdefault(model.name, index)) != index:
            problems.append(Problem(("models", index, "name"), f"is the name of models[{first}] too", "rename one"))
    return problems


def _gpus(models: Mapping[int, ModelConfig]) -> list[Problem]:
    problems, owners = [], dict[int, int]()
    for index, model in models.items():
        for gpu in model.gpus:
            if (owner := owners.setdefault(gpu, index)) != index:
                what = f"GPU {gpu} belongs to models[{owner}] already"
                problems.append(Problem(("models", index, "gpus"), what, "give each GPU to one model"))
    return problems

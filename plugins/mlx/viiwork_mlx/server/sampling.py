"""A request's sampling settings, tried out before they meet the batch: what they break there ends it for everybody."""

# mypy: allow-untyped-calls

from __future__ import annotations

import math
from typing import Any

import mlx.core as mx
from mlx_lm.sample_utils import make_logits_processors

from viiwork_mlx.server.body import BadRequest

LARGEST_XTC = 0.5
"""Of xtc_threshold, as mlx_lm has it."""


def try_out(arguments: Any, vocabulary: int) -> None:
    """Check what a request says of sampling (mlx_lm's GenerationArguments). Raises BadRequest.

    `vocabulary`: how many tokens the model chooses from. MLX writes where an index points, also outside of an array,
    so the tokens of logit_bias are checked by hand. So is what the sampler takes: an error inside of its compiled
    functions leaves MLX's source of randomness unusable.
    """
    bias, chosen = arguments.logits.logit_bias or {}, arguments.sampling
    if any(not 0 <= token < vocabulary for token in bias):
        raise BadRequest(f"logit_bias must name tokens from 0 to {vocabulary - 1}")
    if chosen.xtc_threshold > LARGEST_XTC:
        raise BadRequest(f"xtc_threshold must be at most {LARGEST_XTC}")
    if chosen.top_k >= vocabulary:
        chosen.top_k = 0  # all of them, for which mlx_lm writes 0
    try:
        chosen.temperature = float(chosen.temperature)
        finite = all(math.isfinite(value) for value in _numbers(arguments, bias))
        _penalise(arguments, vocabulary)
    except (ValueError, TypeError, RuntimeError, OverflowError) as error:
        raise BadRequest(f"the sampling settings cannot be used: {error}") from error
    if not finite:
        raise BadRequest("the sampling settings must be finite numbers")


def _numbers(arguments: Any, bias: dict[int, float]) -> list[float]:
    logits = [value for name, value in vars(arguments.logits).items() if name != "logit_bias"]
    return [*vars(arguments.sampling).values(), *logits, *bias.values()]


def _penalise(arguments: Any, vocabulary: int) -> None:
    """Do to two tokens of nothing what will be done to the model's."""
    penalties = {name: value for name, value in vars(arguments.logits).items() if name != "logit_bias"}
    logits = mx.zeros((1, vocabulary))
    for process in make_logits_processors(arguments.logits.logit_bias, **penalties):
        logits = process(mx.array([0, 0]), logits)
    mx.eval(logits)

"""models[]: what one entry of the list says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import AfterValidator, Field, model_validator

from viiwork_core.config.blocks import Block, OpenBlock, misplaced
from viiwork_core.config.values import AtLeastOne, Count, File, OwnIp, Positive, Tuple, Variable, Word


def _each_once(value: tuple[int, ...]) -> tuple[int, ...]:
    if len(set(value)) != len(value):
        raise ValueError("names a GPU twice; list each index once")
    return value


class KvShareConfig(Block):
    """Hosts of one group hand each other the caches of sessions. Needs a mesh with a secret."""

    group: Word
    """Hosts with the same word here share."""

    min_tokens: Count = 8192
    """Tokens of a conversation from which on its cache is saved."""

    max_gib: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 16.0
    """GiB of disk for received caches, and as much for those to be sent."""

    bandwidth_mbit: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0
    """Mbit/s that sending this model's caches may take, all transfers together; 0: no limit."""

    parallel_transfers: AtLeastOne = 1
    """Caches of this model that are sent at a time."""

    allow_open: bool = False
    """Move caches in an open mesh too, where anybody who reaches the port of a member can read and send some."""

    address: OwnIp | None = None
    """Where this node receives caches, such as a direct cable. Unset: the address that the mesh uses."""


class ModelConfig(OpenBlock):
    """One model that this node serves. Its engine's own block goes here too."""

    name: Word
    """What clients ask for; the same on all machines that serve the model, and once on each."""

    engine: Word
    """The plugin that knows the program which serves it."""

    path: File | None = None
    """The model's file or folder. Which, and whether there must be one, says the engine."""

    context: AtLeastOne
    """Tokens per slot."""

    parallel: AtLeastOne = 1
    """Slots of each backend: requests that it serves at one time."""

    gpus: Annotated[Tuple[Count], AfterValidator(_each_once)] = ()
    """The host's indices of this model's cards. Empty: the CPU."""

    gpus_per_backend: AtLeastOne = 1
    """Cards of each backend, in the order of gpus; it must divide their number."""

    startup_timeout: Positive | None = None
    """How long a backend may load. Unset: the engine's own."""

    first_byte_timeout: Positive | None = None
    """How long a streamed request may wait for the first byte of its answer before it is tried elsewhere; another one,
    only where the engine says besides that it does nothing for it. Unset: twice the time that 100 tokens a second need
    for its prompt, and 30s at least."""

    args: Tuple[str] = ()
    """Arguments for the engine's program, appended last, so that they win."""

    env: Mapping[Variable, str] = Field(default_factory=dict)
    """Environment variables for the engine's program, set last, so that they win. Default: none."""

    kv_share: KvShareConfig | None = None
    """Unset: this model's caches stay where they are."""

    @property
    def backends(self) -> int:
        """How many backends the model has on this node, if its engine starts them."""
        return max(1, len(self.gpus) // self.gpus_per_backend)

    @property
    def block(self) -> Mapping[str, Any]:
        """The engine's own block, unread."""
        block: Mapping[str, Any] = self.blocks.get(self.engine, {})
        return block

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.gpus and len(self.gpus) % self.gpus_per_backend:
            raise misplaced(("gpus_per_backend",), f"does not divide the {len(self.gpus)} GPUs of this model")
        return self

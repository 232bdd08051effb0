"""A scenario: the hosts, the agents and the network of one simulation, read from JSON."""

from __future__ import annotations

from enum import StrEnum
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from viiwork_core.errors import ConfigError

_Positive = Annotated[float, Meta(gt=0)]
_Seconds = Annotated[float, Meta(ge=0)]
_Tokens = Annotated[int, Meta(ge=0)]
_Some = Annotated[int, Meta(ge=1, le=10_000)]


class Names(StrEnum):
    """How a conversation is told from another."""

    NONE = "none"
    """Not at all."""

    HEADER = "header"
    """By a header that the agent sends."""

    CHAIN = "chain"
    """By the earlier request that it extends."""


class HostModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One machine."""

    name: Annotated[str, Meta(min_length=1)]
    backends: _Some
    slots: _Some
    """Of each backend."""

    prefill_tps: _Positive
    """Prompt tokens read a second."""

    decode_tps: _Positive
    """Tokens written a second."""

    overhead_s: _Seconds = 0.0
    """From a slot to the first token of a prompt that is wholly cached."""

    parked: Annotated[int, Meta(ge=0)] = 0
    """Conversations that a backend keeps in its own memory beside those in its slots."""

    unpark_s: _Seconds = 0.0
    """What it takes to bring one back from there."""

    pinned: bool = True
    """False: the engine chooses the slot, by what it holds."""


class AgentModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What every agent does, turn after turn. Spans are medians of log-normal draws."""

    count: _Some
    entries: Annotated[tuple[str, ...], Meta(min_length=1)]
    """The hosts that they enter by, in turn."""

    opening: _Tokens
    """Tokens of the first prompt, alike for all."""

    growth: _Tokens
    """Tokens that a turn adds beside the answer: results of tools."""

    answer: _Tokens
    """Tokens of an answer."""

    think_s: _Seconds
    """From an answer to the next prompt."""

    limit: _Tokens
    """Tokens from which the history is compacted."""

    compacted: _Tokens
    """Tokens of a compacted history."""

    spread: Annotated[float, Meta(ge=0, le=3)] = 0.5
    """Sigma of the draws."""

    start_s: _Seconds = 60.0
    """Within which all have begun."""


class KvModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How caches move."""

    link_mbit: _Positive
    """What a transfer gets of the link between two hosts."""

    mib_per_1k_tokens: _Positive
    """Of a whole cache."""

    save_s: _Seconds
    """For which a slot is held after a turn."""

    import_s: _Seconds
    """From a replica on disk to a slot that holds it."""

    delta_mib_per_1k_tokens: Annotated[float, Meta(ge=0)] = 0.0
    """Of a delta, by what is new in it; 0: the same. No delta is larger than the cache."""

    min_tokens: _Tokens = 8192
    store: _Some = 64
    """Replicas that a host keeps."""


class Scenario(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One simulation."""

    name: Annotated[str, Meta(min_length=1)]
    notes: tuple[str, ...]
    """Where each figure comes from; those that were fitted, and to what."""

    minutes: _Positive
    hosts: Annotated[tuple[HostModel, ...], Meta(min_length=1)]
    agents: AgentModel
    rtt_ms: _Seconds = 1.0
    poll_s: _Positive = 1.0
    queue_max: Annotated[int, Meta(ge=0)] = 64
    queue_timeout_s: _Positive = 20.0
    forward_retry: Annotated[int, Meta(ge=0)] = 1
    stale_after_s: _Positive = 3.0
    kv: KvModel | None = None
    """None: caches stay where they are."""

    seed: int = 1

    def __post_init__(self) -> None:
        names = [host.name for host in self.hosts]
        if len(set(names)) != len(names):
            raise ValueError("hosts: two have one name")
        if unknown := set(self.agents.entries) - set(names):
            raise ValueError(f"agents.entries: no host is called {', '.join(sorted(unknown))}")


def shipped() -> tuple[str, ...]:
    """The names of the scenarios that come with viiwork."""
    return tuple(sorted(path.name.removesuffix(".json") for path in _FOLDER.iterdir() if path.name.endswith(".json")))


def load(name: str) -> Scenario:
    """A shipped scenario, or the one in the file of that name. Raises ConfigError with what is wrong."""
    path = _FOLDER / f"{name}.json" if name in shipped() else Path(name)
    try:
        return msgspec.json.decode(path.read_bytes(), type=Scenario)
    except OSError as error:
        raise ConfigError(
            f"scenario {name}: {error}", remedy=f"name a file, or one of: {', '.join(shipped())}"
        ) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"scenario {name}: {error}") from error


_FOLDER = files("viiwork_core.simulation") / "scenarios"

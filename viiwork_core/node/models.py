"""The models of a node: those that the configuration names now, and which of them are parked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from viiwork_core.config.schema import ModelConfig
from viiwork_core.contracts.engine import Wire
from viiwork_core.engines.plan import BackendPlan
from viiwork_core.errors import ConfigError, InvalidRequest, ViiworkError
from viiwork_core.kvshare.caches import SharedModel
from viiwork_core.node.plans import Planned
from viiwork_core.registry.options import ResolvedModel

OPENAI_PATHS = frozenset(("/v1/chat/completions", "/v1/completions", "/v1/embeddings"))
"""Taken by every node, whatever its own engines serve: a peer may have the model."""


@dataclass(frozen=True, slots=True)
class Changes:
    """What a new list of models made of the old one, by name."""

    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[str, ...]
    kept: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Entry:
    config: ModelConfig
    planned: Planned


class Models:
    """On the data loop. Iterating gives the models in the order of the configuration."""

    def __init__(self, resolved: Sequence[ResolvedModel], plan: Callable[[ResolvedModel], Planned]) -> None:
        """`plan` makes a model ready to run. Raises as `replace` does."""
        self._plan = plan
        self._entries: dict[str, _Entry] = {}
        self._parked: set[str] = set()
        self._wires: dict[str, Wire] = {}
        self._endpoints = OPENAI_PATHS
        self.replace(resolved)

    def __iter__(self) -> Iterator[Planned]:
        return (entry.planned for entry in self._entries.values())

    @property
    def wires(self) -> Mapping[str, Wire]:
        """By model, and always the newest. Those of models that are gone stay: requests may still run there."""
        return MappingProxyType(self._wires)

    def first_byte_timeout(self, model: str) -> float | None:
        """Seconds, as configured; None: not, or not one of this node's models any more."""
        entry = self._entries.get(model)
        return None if entry is None else entry.planned.first_byte_timeout

    @property
    def slotted(self) -> dict[str, bool]:
        """Whether each model's engine names its slots."""
        return {model.name: model.wire.slot_field is not None for model in self}

    @property
    def shared(self) -> dict[str, SharedModel]:
        """The models whose caches are shared."""
        return {model.name: model.shared for model in self if model.shared is not None}

    @property
    def backends(self) -> tuple[BackendPlan, ...]:
        """The backends of all models, parked ones too."""
        return tuple(backend for model in self for backend in model.backends)

    @property
    def parked(self) -> frozenset[str]:
        """The models that were taken down. In memory only: a restarted node has none."""
        return frozenset(self._parked)

    def endpoints(self) -> frozenset[str]:
        """The POST paths that clients may use."""
        return self._endpoints

    def replace(self, resolved: Sequence[ResolvedModel]) -> Changes:
        """Serve these models from now on. One whose configuration says the same is left as it is.

        Raises ConfigError with a line for each model that cannot be planned; then nothing has changed.
        """
        entries, problems = dict[str, _Entry](), list[ViiworkError]()
        for model in resolved:
            known = self._entries.get(model.config.name)
            try:
                # Compared by content, not by place in the file: a default that is written out is no change.
                same = known is not None and known.config == model.config
                entries[model.config.name] = known if known and same else _Entry(model.config, self._plan(model))
            except ViiworkError as error:
                problems.append(error)
        if problems:
            raise _together(problems)
        changes = _compared(self._entries, entries)
        self._entries = entries
        self._parked &= entries.keys()
        self._wires.update({model.name: model.wire for model in self})
        self._endpoints = OPENAI_PATHS.union(*(model.wire.endpoints for model in self))
        return changes

    def park(self, names: Sequence[str] | None, *, parked: bool) -> dict[str, bool]:
        """Note that models are to be down, or up again; None: all of them. By name, whether that is news.

        Raises InvalidRequest for a name that is not one of this node's; then nothing has changed.
        """
        unknown = sorted(set(names or ()) - self._entries.keys())
        if unknown:
            known = ", ".join(self._entries) or "none"
            raise InvalidRequest(f"not served by this node: {', '.join(unknown)}", remedy=f"its models: {known}")
        chosen = list(dict.fromkeys(self._entries if names is None else names))
        changes = {name: (name in self._parked) is not parked for name in chosen}
        self._parked = self._parked | set(chosen) if parked else self._parked - set(chosen)
        return changes


def _compared(old: Mapping[str, _Entry], new: Mapping[str, _Entry]) -> Changes:
    both = [name for name in new if name in old]
    return Changes(
        added=tuple(name for name in new if name not in old),
        removed=tuple(name for name in old if name not in new),
        changed=tuple(name for name in both if new[name] is not old[name]),
        kept=tuple(name for name in both if new[name] is old[name]),
    )


def _together(problems: Sequence[ViiworkError]) -> ViiworkError:
    if len(problems) == 1:
        return problems[0]
    return ConfigError("\n".join(f"{one.message}; {one.remedy}" if one.remedy else one.message for one in problems))

"""The doctor contract: what a plugin can look at when the operator asks whether this machine is well set up."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from viiwork_core.contracts.context import Context
from viiwork_core.contracts.engine import Spec
from viiwork_core.contracts.options import PluginOptions


class Level(StrEnum):
    """How a finding counts."""

    OK = "ok"
    WARNING = "warning"
    """It works, and may not always, or not as well as it could."""

    PROBLEM = "problem"
    """It does not work."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    level: Level
    what: str
    """One sentence. It holds no secret."""

    remedy: str = ""
    """What the operator can do. Empty only where all is well."""

    def __post_init__(self) -> None:
        if self.level is not Level.OK and not self.remedy:
            raise ValueError(f"a {self.level} needs a remedy: {self.what}")


@dataclass(frozen=True, slots=True)
class DoctorModel:
    """A model of this machine, as its configuration has it."""

    engine: str
    """Name of its engine."""

    options: PluginOptions
    """The engine's own options."""

    specs: tuple[Spec, ...]
    """Its backends; their ports are 0. Empty: nothing is started for it, or it cannot be laid out."""


@dataclass(frozen=True, slots=True)
class DoctorContext:
    """What a check may use."""

    services: Context
    """The core's services. `services.state_dir` lasts as long as the check."""

    models: tuple[DoctorModel, ...]
    """All models of this machine, whoever's engine they have: a check looks at its own."""

    api: str | None = None
    """http://HOST:PORT of this machine's node, for paths that it offers; None: none runs."""


class DoctorCheck(ABC):
    """One look at this machine. It is made without arguments, and changes nothing."""

    name: ClassVar[str]
    """Lowercase word under which its findings stand."""

    @abstractmethod
    async def run(self, context: DoctorContext) -> Sequence[Finding]:
        """Look, within 60 seconds; none: there was nothing to look at. Called once, on an event loop of its own.

        What raises or takes longer becomes a warning that names the check.
        """

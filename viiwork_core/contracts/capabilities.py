"""What an engine may add to the contract. The core asks `isinstance` once, when it loads the class."""

from __future__ import annotations

from abc import ABC, abstractmethod

from viiwork_core.contracts.engine import Address, Spec


class RunsOnCpu:
    """The engine works without a GPU, so `gpus` may be left out."""


class Prepares(ABC):
    """The engine must read something before `launch` can be pure: a binary's --help, a configuration of its own."""

    @abstractmethod
    async def prepare(self, spec: Spec) -> None:
        """Read it. Called before each launch on the control loop. Raises ConfigError, naming key and remedy."""


class Versioned(ABC):
    """The engine can say which version it is."""

    @abstractmethod
    async def version(self, address: Address) -> str | None:
        """At most 40 of A-Za-z0-9.+_-; None: it cannot say."""

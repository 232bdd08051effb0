"""What an engine may add to the contract. The core asks `isinstance` once, when it loads the class."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from viiwork_core.contracts.engine import Address, Engine, Spec, Vendor, Wire
from viiwork_core.contracts.recognition import FolderListing, FoundModel


class RunsOnCpu:
    """The engine works without a GPU, so `gpus` may be left out."""


class Prepares(ABC):
    """The engine must read something before `launch` can be pure: a binary's --help, a configuration of its own."""

    @abstractmethod
    async def prepare(self, spec: Spec) -> None:
        """Read it. Called before each launch on the control loop. Raises ConfigError, naming key and remedy."""


class Advises(ABC):
    """The engine can tell, before a backend is started, what is likely to go wrong or to be slow."""

    @abstractmethod
    async def advice(self, spec: Spec) -> Sequence[str]:
        """Sentences for the operator, each with its remedy; none: nothing to say. What cannot work at all is no advice
        but a ConfigError of `prepare` or `launch`, which have been called before with the same spec.

        Called on the control loop before each start, and by `viiwork config check` and `config show`. Each sentence
        is logged once for a model; nothing else follows from it, and an error costs only the advice.
        """


class Versioned(ABC):
    """The engine can say which version it is."""

    @abstractmethod
    async def version(self, address: Address) -> str | None:
        """At most 40 of A-Za-z0-9.+_-; None: it cannot say. Asked once, when a backend has become ready, and shown by
        `viiwork status` and /v1/status; an error costs only the version."""


class WarmsUp(ABC):
    """The engine should have been ready for a while, without a break, before it gets its first request."""

    @abstractmethod
    def warm_up(self) -> float:
        """Seconds; 0: none. Pure; asked at each launch. `probe` goes on saying ready: the core does the waiting, which
        is part of the startup_timeout."""


class Attaches(ABC):
    """The engine starts nothing: its servers run already, here or elsewhere, and its options say where.

    `launch` returns None. Such a model has a backend for each address, and no path, GPUs, arguments or environment.
    Its servers come and go as they like: a backend whose server is away waits for it and is never given up.
    """

    @abstractmethod
    def addresses(self) -> tuple[Address, ...]:
        """Where the servers listen: one or more, each once. Pure; asked once, before anything else."""


class VariesWire(ABC):
    """The engine's options decide about facts of its Wire."""

    @abstractmethod
    def varied_wire(self) -> Wire:
        """The Wire of this instance, in place of its class's. Pure; asked once, before anything else."""


class Recognizes(ABC):
    """The engine knows its models when it sees their files, so that the setup wizard can offer them."""

    @classmethod
    @abstractmethod
    def recognize(cls, folder: FolderListing) -> Sequence[FoundModel]:
        """The models in this folder, not in those below it; none: there is none of this engine's.

        Blocking. It may read headers and small files, never weights, and opens nothing that is not in
        the listing, or it may wait for ever. A folder may hold anything: it raises for none.
        """

    @classmethod
    def program(cls) -> str | None:
        """Path of the program that is started where nobody names one; None: there is nothing to find.

        Blocking. Raises ConfigError, with the remedy, when this machine has none.
        """
        return None

    @classmethod
    def dockerfile(cls, vendor: Vendor) -> str | None:
        """Text of a Dockerfile for an image with viiwork and this engine's program for cards of that vendor; None:
        there is none. It is built on the machine that it runs on, in a folder with a folder wheels, from which
        viiwork is installed where something lies in it. Its command is `viiwork`."""
        del vendor
        return None


def wire_of(engine: Engine) -> Wire:
    """What holds for this instance."""
    return engine.varied_wire() if isinstance(engine, VariesWire) else engine.wire

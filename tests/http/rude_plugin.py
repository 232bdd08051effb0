"""Engines that break the contract on the control loop. A stranger's plugin."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import ClassVar

from scripted_plugin import Scripted

from viiwork_core import Address, Engine, Probe, hookimpl

BLOCKED_FOR = 3.0


class Blocks(Scripted):
    """Holds the loop for seconds in each probe, and says with a file when it does."""

    name: ClassVar[str] = "blocks"

    async def probe(self, address: Address) -> Probe:
        mark = Path(self.context.state_dir) / "blocking"
        mark.touch()
        time.sleep(BLOCKED_FOR)  # noqa: ASYNC251  # the fault itself
        mark.unlink()
        return await super().probe(address)


class Junk(Scripted):
    """Answers with what the contract does not know."""

    name: ClassVar[str] = "junk"

    async def probe(self, address: Address) -> Probe:
        return {"ready": True}  # type: ignore[return-value]  # the fault itself


class Forks(Scripted):
    """Forks the node with each probe."""

    name: ClassVar[str] = "forks"

    async def probe(self, address: Address) -> Probe:
        if os.fork() == 0:
            os._exit(0)
        return await super().probe(address)


@hookimpl
def viiwork_register_engine() -> list[type[Engine]]:
    return [Blocks, Junk, Forks]

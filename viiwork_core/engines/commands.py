"""Short commands for plugins: a `--version`, a `--help`."""

from __future__ import annotations

from collections.abc import Sequence

import anyio

from viiwork_core.contracts.context import CommandOutput
from viiwork_core.engines.environment import child_environment
from viiwork_core.engines.process import Child, Sink, start_group
from viiwork_core.errors import ConfigError, EngineRefused

DEADLINE = 10.0
OUTPUT_LIMIT = 1024 * 1024


class _Kept(Sink):
    """The first mebibyte of output. More is read and dropped, so that the command can end."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = bytearray()

    def data_received(self, data: bytes) -> None:
        self.bytes += data[: OUTPUT_LIMIT - len(self.bytes)]


class Commands:
    """Runs commands for plugins; `run` is the service that Context.run_command offers."""

    def __init__(self, node_id: str, *, deadline: float = DEADLINE) -> None:
        self.node_id = node_id
        """The process that runs them, for the mark that each carries."""

        self._deadline = deadline

    async def run(self, argv: Sequence[str]) -> CommandOutput:
        """Run a command to its end. Whatever it started ends with it.

        Raises EngineRefused when it cannot be started or is not done in time.
        """
        try:
            child = await start_group(argv, child_environment(self.node_id), _Kept())
        except ConfigError as error:
            raise EngineRefused(error.message, remedy=error.remedy) from error
        try:
            return await self._output(child, argv[0])
        finally:
            child.kill()
            with anyio.CancelScope(shield=True):
                await child.end()

    async def _output(self, child: Child[_Kept], name: str) -> CommandOutput:
        with anyio.move_on_after(self._deadline):
            code = await child.wait()
            return CommandOutput(code, child.sink.bytes.decode("utf-8", "replace"))
        raise EngineRefused(f"{name} did not end within {self._deadline:g} s")

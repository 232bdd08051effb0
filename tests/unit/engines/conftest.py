"""Tools of a machine with GPUs, as real programs that print what was recorded."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from viiwork_core.contracts.context import CommandOutput
from viiwork_core.engines.commands import Commands
from viiwork_core.engines.gpus import amd

CAPTURES = Path(__file__).parents[2] / "captures/gpus"


class Tools:
    """The programs on PATH; there are no others."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.calls: list[str] = []
        self.deadline = 20.0

    def add(self, name: str, answers: Mapping[str, str]) -> None:
        """A program that prints the recording that belongs to its arguments, and fails for all others."""
        cases = "\n".join(
            f"{shlex.quote(arguments)}) exec /bin/cat {shlex.quote(str(CAPTURES / file))} ;;"
            for arguments, file in answers.items()
        )
        self._write(name, f'case "$*" in\n{cases}\n*) echo "unknown arguments: $*"; exit 64 ;;\nesac')

    def hang(self, name: str) -> None:
        """A program that does not end."""
        self._write(name, "exec /bin/sleep 600")

    def _write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    async def run(self, argv: Sequence[str]) -> CommandOutput:
        """What the node runs commands with."""
        self.calls.append(argv[0])
        return await Commands("test-node", deadline=self.deadline).run(argv)


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tools:
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr(amd, "ROCM", str(folder))
    return Tools(folder)


@pytest.fixture
def captures() -> Path:
    return CAPTURES


@pytest.fixture
def gfx906(tmp_path: Path) -> Path:
    """The root of a file system with the recorded files of two gfx906 cards."""
    root = tmp_path / "root"
    parts = re.split(r"^==> /(.+) <==\n", (CAPTURES / "amd/sysfs.txt").read_text(), flags=re.MULTILINE)
    for name, content in zip(parts[1::2], parts[2::2], strict=True):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content.strip("\n") + "\n")
    (root / "dev").mkdir()
    (root / "dev/kfd").touch()
    return root

"""Which build of llama.cpp a binary is, and which cache files it reads."""

from __future__ import annotations

import re
from dataclasses import dataclass

from viiwork_core import EngineRefused, RunCommand

COMMITS = {"571d0d5": 10068, "3ce7da2": 10092, "7e4c0a9": 10434}
"""Builds that were made without their number and call themselves build 1."""

STATE_VERSIONS = (
    (range(10068, 10093), "2"),
    (range(10434, 10435), "2 packed"),
    (range(11434, 11435), "4 packed"),
)
"""Formats of the cache file, for builds that were seen to write them: its version, and whether its token list is
packed. Version 2 covers both, and a build that writes plain lists takes the words of the packing for tokens."""

VERSION = re.compile(r"\bversion:\s*(\d+)\s*\(([0-9a-f]{7,40})\)")
BUILD = re.compile(r"\(build\s+(\d+),\s*commit\s+([0-9a-f]{7,40}|unknown)\)")


@dataclass(frozen=True, slots=True)
class Build:
    """What a binary says it is; all unknown when it does not say."""

    number: int | None = None
    commit: str | None = None

    @property
    def label(self) -> str | None:
        """For people: the number where there is one, else the commit."""
        return f"b{self.number}" if self.number else self.commit

    @property
    def state_version(self) -> str | None:
        """Equal for builds that read each other's cache files. A build that was never looked at equals only itself."""
        for numbers, version in STATE_VERSIONS:
            if self.number in numbers:
                return version
        return self.label


def parse_version(text: str) -> Build:
    """Read a --version."""
    match = VERSION.search(text) or BUILD.search(text)
    if match is None:
        return Build()
    commit = None if match[2] == "unknown" else match[2]
    number: int | None = int(match[1])
    if number in (0, 1):  # a checkout without history counts one commit, a tarball none
        number = COMMITS.get(commit[:7]) if commit else None
    return Build(number, commit)


async def read_build(run_command: RunCommand, binary: str) -> Build:
    """Ask a binary; all unknown when it cannot be run."""
    try:
        return parse_version((await run_command((binary, "--version"))).text)
    except EngineRefused:
        return Build()

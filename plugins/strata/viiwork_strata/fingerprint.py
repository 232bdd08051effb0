"""What of a Strata JSON decides whether a session file of one host fits another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from viiwork_core import EngineRefused
from viiwork_strata.program import base

Part = tuple[str, ...]
"""The values of one part, in order."""


def flags(args: Sequence[str]) -> dict[str, Part]:
    """The engine's arguments by flag: ("--kv", "int8", "--no-ple") -> {"--kv": ("int8",), "--no-ple": ()}.

    Values of a flag that is given twice follow each other; values before any flag are under "args".
    """
    grouped: dict[str, Part] = {}
    flag = "args"
    for arg in args:
        if arg.startswith("--"):
            flag = arg
            grouped.setdefault(flag, ())
        else:
            grouped[flag] = (*grouped.get(flag, ()), arg)
    return grouped


def engine_args(config: Mapping[str, object]) -> dict[str, Part]:
    """The engine's arguments by flag; files are still paths here. Raises EngineRefused when they are not strings."""
    args = config.get("args", [])
    if not isinstance(args, list) or not all(isinstance(arg, str) for arg in args):
        raise EngineRefused('the Strata JSON has "args" that are not a list of strings')
    return flags(args)


def settings(config: Mapping[str, object], inherited: Mapping[str, str]) -> dict[str, str]:
    """What Strata compares and takes from elsewhere than `args`. The JSON's "env" wins over the inherited one."""
    env = config.get("env")
    own = env if isinstance(env, dict) else {}
    rotation = own.get("STRATA_KV_ROT", inherited.get("STRATA_KV_ROT", ""))
    return {"backend": str(config.get("backend", "cuda")), "STRATA_KV_ROT": str(rotation)}


def executable(config: Mapping[str, object]) -> Path:
    """The engine's binary. Raises EngineRefused when the JSON names none."""
    exe = config.get("exe")
    if not isinstance(exe, str) or not exe:
        raise EngineRefused('the Strata JSON has no "exe": its version cannot be compared')
    return base(config) / exe

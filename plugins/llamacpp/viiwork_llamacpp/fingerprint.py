"""What must be equal between two backends for a moved cache to be right, read from their command lines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from viiwork_core import Digest

FLASH_ATTENTION = {
    "1": "on",
    "true": "on",
    "enabled": "on",
    "0": "off",
    "false": "off",
    "disabled": "off",
    "-1": "auto",
}

ROPE_FLAGS = (
    "--rope-scaling",
    "--rope-scale",
    "--rope-freq-base",
    "--rope-freq-scale",
    "--yarn-orig-ctx",
    "--yarn-ext-factor",
    "--yarn-attn-factor",
    "--yarn-beta-slow",
    "--yarn-beta-fast",
    "--grp-attn-n",
    "-gan",
    "--grp-attn-w",
    "-gaw",
)
UNIFIED, DIVIDED = ("-kvu", "--kv-unified"), ("-no-kvu", "--no-kv-unified")


class Arguments:
    """A command line as llama-server reads it: the last value of a flag wins, and `_` is `-` in long flags."""

    def __init__(self, argv: Sequence[str]) -> None:
        self._words = [word.replace("_", "-") if word.startswith("--") else word for word in argv]
        self._values = list(argv)

    def has(self, *flags: str) -> bool:
        """Whether any of the spellings is there."""
        return any(word in flags for word in self._words)

    def every(self, *flags: str) -> list[str]:
        """All values given, in order."""
        pairs = zip(self._words, self._values[1:], strict=False)
        return [value for word, value in pairs if word in flags]

    def last(self, *flags: str, default: str = "") -> str:
        """The value that counts."""
        return (self.every(*flags) or [default])[-1]

    def last_flag(self, *flags: str) -> str | None:
        """Which of several spellings came last."""
        return next((word for word in reversed(self._words) if word in flags), None)


def environment(env: Mapping[str, str]) -> str:
    """Settings that the operator gives by LLAMA_ARG_* variables, all of them: an argument wins over its variable, so
    this is stricter than needed where both are there."""
    return " ".join(f"{name}={env[name]}" for name in sorted(env) if name.startswith("LLAMA_ARG_"))


def settings(argv: Sequence[str]) -> dict[str, str]:
    """The parts of the fingerprint that the command line alone decides."""
    arguments = Arguments(argv)
    flash = arguments.last("-fa", "--flash-attn", default="auto").lower()
    return {
        "streams": _streams(arguments),
        "flash_attention": FLASH_ATTENTION.get(flash, flash),
        "cache_type_k": arguments.last("-ctk", "--cache-type-k", default="f16").lower(),
        "cache_type_v": arguments.last("-ctv", "--cache-type-v", default="f16").lower(),
        "rope": " ".join(f"{flag} {value}" for flag in ROPE_FLAGS if (value := arguments.last(flag))),
        "overrides": " ".join(arguments.every("--override-kv")),
        "swa_full": str(arguments.has("--swa-full")).lower(),
    }


def _streams(arguments: Arguments) -> str:
    """A file holds one stream a slot, or a single one when the slots' cache is unified."""
    slots = arguments.last("-np", "--parallel", default="-1")
    unified = arguments.last_flag(*UNIFIED, *DIVIDED) in UNIFIED
    return "1" if unified or slots == "-1" else slots


async def adapters(argv: Sequence[str], digest: Digest) -> str:
    """Adapters and control vectors by what is in them, not by where they lie, with their scales."""
    return " ".join([f"{kind} {await digest(path)} {scale}" for kind, path, scale in _adapter_files(Arguments(argv))])


def _adapter_files(arguments: Arguments) -> Iterator[tuple[str, Path, str]]:
    for kind in ("--lora", "--control-vector"):
        for name in _listed(arguments.every(kind)):
            yield kind, Path(name), "1"
        for pair in _listed(arguments.every(f"{kind}-scaled")):
            name, _, scale = pair.rpartition(":")
            yield kind, Path(name), scale


def _listed(values: Sequence[str]) -> list[str]:
    return [item for value in values for item in value.split(",")]


async def model(files: Sequence[Path], digest: Digest) -> str:
    """The model's bytes, all parts of it in order."""
    return "+".join([await digest(file) for file in files])


async def program(binary: Path, digest: Digest) -> str:
    """The binary's own bytes, for one that does not say which build it is. A build with shared libraries is a small
    program beside libllama, so these count too."""
    files = [binary, *sorted(binary.parent.glob("libllama*"))]
    return "+".join([await digest(file) for file in files])

"""What `viiwork doctor` looks at: each llama-server that is configured runs, is one, and says which build it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from viiwork_core import ConfigError, DoctorCheck, DoctorContext, EngineRefused, Finding, Level, RunCommand
from viiwork_llamacpp.build import Build, parse_version
from viiwork_llamacpp.launch import find_binary, parse_help
from viiwork_llamacpp.options import LlamaCppOptions

ENGINE = "llamacpp"


class LlamaCppCheck(DoctorCheck):
    """The programs, each once."""

    name: ClassVar[str] = ENGINE

    async def run(self, context: DoctorContext) -> Sequence[Finding]:
        """Ask each for its version and its help."""
        found, binaries = list[Finding](), dict[str, bool]()
        for model in context.models:
            if not isinstance(model.options, LlamaCppOptions) or model.engine != ENGINE:
                continue
            name = model.specs[0].model if model.specs else ENGINE
            try:
                binary = find_binary(model.options, name)
            except ConfigError as error:
                found.append(Finding(Level.PROBLEM, error.message, error.remedy))
                continue
            shares = any(spec.cache_dir is not None for spec in model.specs)
            binaries[binary] = binaries.get(binary, False) or shares
        run = context.services.run_command
        return [*found, *[await look(binary, run, shares=shares) for binary, shares in binaries.items()]]


async def look(binary: str, run: RunCommand, *, shares: bool) -> Finding:
    """One binary; `shares`: caches of its models move to other hosts."""
    try:
        told, help_text = await run((binary, "--version")), (await run((binary, "--help"))).text
    except EngineRefused as error:
        return Finding(Level.PROBLEM, f"{binary} does not run: {error.message}", "build or install llama.cpp anew")
    try:
        parse_help(help_text)
    except ValueError:
        said = next((line.strip() for line in told.text.splitlines() if line.strip()), "nothing")[:120]
        remedy = "name a llama-server that runs here; libraries that it lacks are told by `ldd`"
        return Finding(Level.PROBLEM, f"{binary} does not answer as llama-server does: {said}", remedy)
    return _judged(binary, parse_version(told.text), shares=shares)


def _judged(binary: str, build: Build, *, shares: bool) -> Finding:
    if build.label is None:
        remedy = "take a release, or build from a checkout with its history"
        return Finding(Level.WARNING, f"{binary} runs, and does not say which build it is", remedy)
    if shares and build.state_version == build.label:
        what = f"{binary} is {build.label}, whose cache files were never looked at: they fit the same build only"
        return Finding(Level.WARNING, what, "run the same build on all hosts of the group")
    return Finding(Level.OK, f"{binary} is {build.label}")

"""What the plugin adds to `viiwork doctor`, with programs that are there and do not do what they should."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from viiwork_core import Context, DoctorContext, DoctorModel, Finding, Level, NoOptions, Spec
from viiwork_llamacpp.doctor import LlamaCppCheck
from viiwork_llamacpp.options import LlamaCppOptions

HELP = "echo '--model FNAME'; echo '--parallel N'"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def program(folder: Path, version: str, help_text: str = HELP) -> Path:
    path = folder / "llama-server"
    path.write_text(f'#!/bin/sh\nif [ "$1" = --version ]; then {version}; else {help_text}; fi\n')
    path.chmod(0o755)
    return path


async def look(context: Context, spec: Spec, binary: Path, *, times: int = 1) -> list[Finding]:
    model = DoctorModel("llamacpp", LlamaCppOptions(binary=str(binary)), (spec,))
    other = DoctorModel("other", NoOptions(), ())
    return list(await LlamaCppCheck().run(DoctorContext(context, (other, *[model] * times))))


@pytest.mark.anyio
async def test_a_build_that_is_known(context: Context, spec: Spec, tmp_path: Path) -> None:
    binary = program(tmp_path, "echo 'version: 10068 (571d0d5)'")
    assert await look(context, spec, binary, times=2) == [Finding(Level.OK, f"{binary} is b10068")]
    shared = replace(spec, cache_dir=tmp_path)
    assert [one.level for one in await look(context, shared, binary)] == [Level.OK]


@pytest.mark.anyio
async def test_a_build_whose_caches_were_never_seen(context: Context, spec: Spec, tmp_path: Path) -> None:
    binary = program(tmp_path, "echo 'version: 99999 (571d0d6)'")
    assert [one.level for one in await look(context, spec, binary)] == [Level.OK]
    (found,) = await look(context, replace(spec, cache_dir=tmp_path), binary)
    assert (found.level, "b99999, whose cache files were never looked at" in found.what) == (Level.WARNING, True)


@pytest.mark.anyio
async def test_a_build_that_does_not_say(context: Context, spec: Spec, tmp_path: Path) -> None:
    (found,) = await look(context, spec, program(tmp_path, "echo what?"))
    assert (found.level, "does not say which build it is" in found.what) == (Level.WARNING, True)


@pytest.mark.anyio
async def test_a_program_that_is_none(context: Context, spec: Spec, tmp_path: Path) -> None:
    text = "echo 'libllama.so: cannot open shared object file'; exit 127"
    (found,) = await look(context, spec, program(tmp_path, text, text))
    assert (found.level, found.what.endswith("libllama.so: cannot open shared object file")) == (Level.PROBLEM, True)
    binary = tmp_path / "llama-server"
    binary.write_text("#!/nowhere/at/all\n")
    (found,) = await look(context, spec, binary)
    assert (found.level, "does not run" in found.what) == (Level.PROBLEM, True)


@pytest.mark.anyio
async def test_a_program_that_is_not_there(context: Context, spec: Spec, tmp_path: Path) -> None:
    (found,) = await look(context, spec, tmp_path / "none")
    assert found.level is Level.PROBLEM
    assert found.remedy

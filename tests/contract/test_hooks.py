"""Each hook, as a stranger's plugin uses it: what it returns can be named in a configuration afterwards."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from viiwork_core import CacheTransfer, Discovery, DoctorCheck, Engine, Listener, Policy, hookspecs
from viiwork_core.registry import entry_points
from viiwork_core.registry.entry_points import load_plugins
from viiwork_core.registry.registry import Registry

Load = Callable[[str], Registry]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    """load(source) installs a plugin of that text, and loads it beside the built-in ones."""
    monkeypatch.syspath_prepend(str(tmp_path))
    module = f"hooked_{abs(hash(tmp_path)):x}"

    def put(source: str) -> Registry:
        text = f"from viiwork_core import *\n\nVIIWORK_API = (API_MAJOR, API_MINOR)\n\n{textwrap.dedent(source)}"
        (tmp_path / f"{module}.py").write_text(text)
        info = tmp_path / "hooked-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: hooked\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[viiwork]\nhooked = {module}\n")
        registry = load_plugins({"VIIWORK_PLUGINS": "hooked"})
        assert not registry.failed
        return registry

    return put


def test_hook_viiwork_register_engine(load: Load) -> None:
    registry = load("""
        class One(Engine):
            name = "one"
            wire = Wire(frozenset({"/v1/chat/completions"}))
            def launch(self, spec): return Launch(("one",))
            async def probe(self, address): return Probe(True)
            async def load(self, spec, address): return Load(1, 0)

        class Two(One):
            name = "two"

        @hookimpl
        def viiwork_register_engine(): return [One, Two]
    """)
    assert [registry.engine(name).name for name in ("one", "two")] == ["one", "two"]
    assert issubclass(registry.engine("one"), Engine)


def test_hook_viiwork_register_discovery(load: Load) -> None:
    registry = load("""
        class Board(Discovery):
            name = "board"
            networks = frozenset({"cork"})
            async def announce(self, card): ...
            async def sightings(self): yield Sighting("127.0.0.2:7946", "board")

        @hookimpl
        def viiwork_register_discovery(): return Board
    """)
    assert issubclass(registry.discovery("board"), Discovery)
    assert registry.discoveries("cork") == (registry.discovery("board"),)


def test_hook_viiwork_register_policy(load: Load) -> None:
    registry = load("""
        class First(Policy):
            name = "first"
            def rank(self, query, candidates, rng): return sorted(one.id for one in candidates)

        @hookimpl
        def viiwork_register_policy(): return [First]
    """)
    assert issubclass(registry.policy("first"), Policy)


def test_hook_viiwork_register_cache_transfer(load: Load) -> None:
    registry = load("""
        class Cache(CacheTransfer):
            engine = "one"
            async def fingerprint(self, spec, address): return {}
            async def save(self, spec, address, session, name): return Saved(0, 0)
            async def restore(self, spec, address, session, name): return 0
            async def holds(self, spec, address, session): return None
            def read(self, path): return CacheFile(None, None, ())

        @hookimpl
        def viiwork_register_cache_transfer(): return Cache
    """)
    assert issubclass(registry.cache_transfer("one"), CacheTransfer)


def test_hook_viiwork_register_doctor_check(load: Load) -> None:
    registry = load("""
        class Fans(DoctorCheck):
            name = "fans"
            async def run(self, context): return [Finding(Level.OK, "they turn")]

        @hookimpl
        def viiwork_register_doctor_check(): return Fans
    """)
    (check,) = registry.doctor_checks()
    assert issubclass(check, DoctorCheck)
    assert check.name == "fans"


def test_hook_viiwork_register_listener(load: Load) -> None:
    registry = load("""
        class Told(Listener):
            name = "told"
            types = frozenset({EventType.BACKEND})
            async def on(self, event): ...

        @hookimpl
        def viiwork_register_listener(): return Told
    """)
    assert issubclass(registry.listener("told"), Listener)


def test_hook_viiwork_register_command(load: Load) -> None:
    load("""
        import click

        @click.command()
        def greet(): click.echo("hello")

        @click.command()
        def status(): click.echo("mine")

        @hookimpl
        def viiwork_register_command(): return [greet, status]
    """)
    registry = load_plugins({"VIIWORK_PLUGINS": "hooked"}, own_commands={"status"})
    greet = registry.command("greet")
    assert greet is not None
    assert CliRunner().invoke(greet).output == "hello\n"
    assert registry.command("status") is None
    (refused,) = registry.failed
    assert refused.reason == "viiwork has a command status of its own; give it another name"


HOOKS = {name for name in vars(hookspecs) if name.startswith("viiwork_")}


def test_each_hook_has_a_test_here() -> None:
    assert {name.removeprefix("test_hook_") for name in globals() if name.startswith("test_hook_")} == HOOKS


def test_each_hook_is_asked() -> None:
    assert {hook.name for hook in entry_points._HOOKS} | {entry_points._COMMAND} == HOOKS

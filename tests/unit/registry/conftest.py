"""Strangers' plugins: real distributions in a temporary folder on sys.path."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from viiwork_core.registry.entry_points import load_plugins
from viiwork_core.registry.registry import Registry

Install = Callable[..., None]

ENGINE = """
from viiwork_core import *

class Options(PluginOptions):
    binary: str = "acme"
    layers: int = 0

class Acme(Engine):
    name = "acme"
    Options = Options
    wire = Wire(frozenset({"/v1/chat/completions"}))
    def launch(self, spec): return None
    async def probe(self, address): return Probe(True)
    async def load(self, spec, address): return Load(1, 0)

class AcmeOnCpu(RunsOnCpu, Acme):
    name = "acme_cpu"

class AcmeCache(CacheTransfer):
    engine = "acme_cpu"
    async def fingerprint(self, spec): return {}
    async def save(self, spec, address, session, name): return Saved(0, 0)
    async def restore(self, spec, address, session, name): return 0
    async def holds(self, spec, address, session): return None
    def read(self, path): return CacheFile(None, None, ())

@hookimpl
def viiwork_register_engine(): return [Acme, AcmeOnCpu]

@hookimpl
def viiwork_register_cache_transfer(): return AcmeCache
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """install(entry_point, source, distribution=..., version=...) puts a distribution with one module on sys.path."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def put(entry_point: str, source: str, *, distribution: str | None = None, version: str = "1.2") -> None:
        # The module's name is the test's own, since imported modules outlive it.
        module = f"stranger_{abs(hash(tmp_path)):x}_{entry_point}"
        name = distribution or f"viiwork-{entry_point}"
        (tmp_path / f"{module}.py").write_text(textwrap.dedent(source))
        info = tmp_path / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (info / "entry_points.txt").write_text(f"[viiwork]\n{entry_point} = {module}\n")

    return put


@pytest.fixture
def load() -> Callable[..., Registry]:
    """load("a", "b") loads the built-ins and these entry points, and not what else this machine has installed."""

    def only(*names: str, **environ: str) -> Registry:
        return load_plugins({"VIIWORK_PLUGINS": ",".join(names), **environ})

    return only

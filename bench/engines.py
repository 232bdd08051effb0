"""Engines that cost next to nothing, for measurements of what stands before them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from bench.lan import WITH_US, Machine

_FAKE = "viiwork_core.testing.fake_engine"


@contextmanager
def fake_model(machine: Machine, name: str, *, slots: int, loading_s: float = 0.0) -> Iterator[dict[str, Any]]:
    """A model's entry of a node's configuration, and a fake engine for it that runs on the machine.

    `loading_s`: how long it takes to be ready.
    """
    local = Machine("127.0.0.1", machine.namespace)
    port = local.free_port()
    command = [*WITH_US, sys.executable, "-m", _FAKE, "--port", str(port), "--alias", name, "--slots", str(slots)]
    command += ["--load-seconds", str(loading_s)]
    with local.inside():
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)  # noqa: S603
    try:
        external = {"urls": [f"http://127.0.0.1:{port}"]}
        yield {"name": name, "engine": "external", "context": 4096, "parallel": slots, "external": external}
    finally:
        process.kill()
        process.wait()

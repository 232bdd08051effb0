"""The viiwork command, as the user of a node under test runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from http_node import Node


def viiwork(node: Node, *args: str, stdin: str | None = None, **environ: str) -> subprocess.CompletedProcess[str]:
    """On the node's machine, without the mesh's secret unless `environ` has it."""
    return subprocess.run(
        [str(Path(sys.executable).with_name("viiwork")), *args],
        env={"PATH": os.environ["PATH"], "HOME": str(node.folder), "VIIWORK_PLUGINS": "", **environ},
        input=stdin,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def command(node: Node, *args: str, stdin: str | None = None, **environ: str) -> subprocess.CompletedProcess[str]:
    """The same, with the node's configuration."""
    return viiwork(node, *args, "--config", str(node.folder / "viiwork.yaml"), stdin=stdin, **environ)

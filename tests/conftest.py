"""What tests of several folders need."""

from __future__ import annotations

import subprocess

import pytest

from viiwork_core import ConfigError


@pytest.fixture(scope="session")
def llama_server() -> None:
    """Skips where no llama-server is installed or it does not run on this CPU."""
    launch = pytest.importorskip("viiwork_llamacpp.launch")
    options = pytest.importorskip("viiwork_llamacpp.options")
    try:
        binary = launch.find_binary(options.LlamaCppOptions(), "tiny")
    except ConfigError as error:
        pytest.skip(error.message)
    if code := subprocess.run([binary, "--version"], capture_output=True, check=False).returncode:
        pytest.skip(f"llama-server does not run here (exit status {code})")

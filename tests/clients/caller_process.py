"""A client in a process of its own, which does one thing after the other as it is told."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

QUIET = {
    "HTTP_PROXY": "http://127.0.0.1:9",
    "HTTPS_PROXY": "http://127.0.0.1:9",
    "NO_PROXY": "127.0.0.1",
    "DO_NOT_TRACK": "1",
    "LANGSMITH_TRACING": "false",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LLM_LOAD_PLUGINS": "",
    "OPENCODE_DISABLE_AUTOUPDATE": "1",
    "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
}
"""What its environment has besides. What it sends elsewhere does not arrive: nobody listens on that port."""


def quiet(home: Path, **more: str) -> dict[str, str]:
    """The environment of a client whose home is an empty folder."""
    return {"PATH": os.environ["PATH"], "HOME": str(home), **QUIET, **more}


class CallerProcess:
    """A line of JSON goes in, {"do": NAME, ...}, and a line comes out: {"ok": VALUE} or {"error": {...}}."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._in, self._out = cast("IO[str]", process.stdin), cast("IO[str]", process.stdout)

    def begin(self, do: str, **given: Any) -> None:
        """Have it do something; `end` returns what came of it."""
        self._in.write(json.dumps({"do": do, **given}) + "\n")
        self._in.flush()

    def end(self) -> Any:
        """{"ok": VALUE} or {"error": {"name", "status", "message"}} of what was begun."""
        line = self._out.readline()
        assert line, f"the client has ended: {self._process.wait(10)}"
        return json.loads(line)

    def do(self, do: str, **given: Any) -> Any:
        """What something returns that must succeed."""
        self.begin(do, **given)
        answer = self.end()
        assert "ok" in answer, answer
        return answer["ok"]

    def fail(self, do: str, **given: Any) -> dict[str, Any]:
        """The error of something that must fail."""
        self.begin(do, **given)
        return dict(self.end()["error"])


@contextmanager
def caller_process(command: Sequence[str | Path], home: Path, **environ: str) -> Iterator[CallerProcess]:
    """A client that reads what it is to do from its standard input, and ends with that."""
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=quiet(home, **environ), stdin=pipe, stdout=pipe, text=True, cwd=home) as process:
        try:
            yield CallerProcess(process)
        finally:
            cast("IO[str]", process.stdin).close()
            process.wait(20)

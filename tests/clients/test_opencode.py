"""OpenCode, a coding agent, which reads the models from /api.json."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from caller_process import quiet
from http_node import Node, model, started
from node_clients import installed

from viiwork_core.testing.tiny_model import write_gguf

pytestmark = pytest.mark.slow

AGENT = "tiny-agent"
CONTEXT = 16384
"""Its own instructions have eight thousand tokens."""

PAGE = Path(__file__).parents[2] / "docs" / "clients.md"
FOUND, WRITTEN = (
    json.loads(text)
    for text in re.findall(r"^```json\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    if "opencode" in text
)
"""The two configurations of the page: with the models from the node's catalogue, and with the models written down."""


def configuration(shown: Any, node: Node) -> str:
    """One of them, for this node and its model, and told to leave the network alone."""
    text = json.dumps({**shown, "autoupdate": False, "share": "disabled"})
    return text.replace("smollm2", AGENT).replace("127.0.0.1:8086", f"{node.host}:{node.port}")


@pytest.fixture(scope="module")
def agent_node(llama_server: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    folder = tmp_path_factory.mktemp("agent")
    entry = model(AGENT, "llamacpp", path=str(write_gguf(folder / "tiny.gguf")), llamacpp={"threads": 1})
    # A model with random weights never finds an end.
    config = {"models": [{**entry, "context": CONTEXT, "args": ["--predict", "24"]}]}
    with started("agent", folder / "one", config, plugins="llamacpp") as node:
        yield node


class OpenCode:
    """The agent, with a home and a project of its own."""

    def __init__(self, folder: Path, node: Node, shown: Any = FOUND, **environ: str) -> None:
        self._project = folder / "project"
        self._project.mkdir()
        (self._project / "opencode.json").write_text(configuration(shown, node))
        self._command = installed("opencode-ai") / "node_modules" / ".bin" / "opencode"
        self._env = quiet(folder, **environ)

    def run(self, *words: str) -> str:
        done = subprocess.run(
            [self._command, *words],
            env=self._env,
            cwd=self._project,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr


@pytest.fixture
def opencode(agent_node: Node, tmp_path: Path) -> OpenCode:
    base = f"http://{agent_node.host}:{agent_node.port}"
    made = OpenCode(tmp_path, agent_node, OPENCODE_MODELS_URL=base)
    made.run("models", "--refresh")  # it looks again by itself each five minutes
    return made


def test_it_finds_the_models_by_itself(opencode: OpenCode) -> None:
    name, _, told = opencode.run("models", "--verbose").partition("\n")
    assert name == f"viiwork/{AGENT}"
    entry = json.loads(told)
    assert entry["limit"] == {"context": CONTEXT, "output": CONTEXT // 4}
    assert (entry["capabilities"]["toolcall"], entry["capabilities"]["temperature"]) == (True, True)


def test_it_takes_models_that_are_written_down(agent_node: Node, tmp_path: Path) -> None:
    opencode = OpenCode(tmp_path, agent_node, WRITTEN, OPENCODE_DISABLE_MODELS_FETCH="1")
    assert f"viiwork/{AGENT}" in opencode.run("models", "viiwork").splitlines()


def test_it_works(opencode: OpenCode, agent_node: Node) -> None:
    said = opencode.run("run", "--pure", "--title", "a test", "Say hello.")
    assert "Error" not in said
    prompts = [event["tokens_in"] for event in agent_node.events("request", status=200, model=AGENT)]
    assert max(prompts) > 4000, "its tools and instructions went along"

"""`llm`, the command line tool, with the model in its extra-openai-models.yaml."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from caller_process import quiet
from callers import EMBEDS, REAL, base_url
from http_node import Node, until
from told import ENDLESS


class Llm:
    """The tool, whose folder holds nothing but what a user writes there."""

    def __init__(self, folder: Path) -> None:
        self.command = [sys.executable, "-m", "llm"]
        self.env = quiet(folder, LLM_USER_PATH=str(folder))

    def run(self, *words: str, status: int = 0) -> str:
        done = subprocess.run(
            [*self.command, *words], env=self.env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout + done.stderr


@pytest.fixture
def llm(real_node: Node, tmp_path: Path) -> Llm:
    names = (REAL, "nobody")
    entries = [{"model_id": name, "model_name": name, "api_base": base_url(real_node)} for name in names]
    (tmp_path / "extra-openai-models.yaml").write_text(json.dumps(entries))  # JSON is YAML
    return Llm(tmp_path)


def test_it_streams_an_answer(llm: Llm, real_node: Node) -> None:
    before = len(real_node.events("request"))
    assert llm.run("-m", REAL, "-o", "temperature", "0", "-o", "max_tokens", "24", "What is new in town?").strip()
    until(lambda: len(real_node.events("request")) > before, "the node tells of it")
    told = real_node.events("request")[-1]
    assert (told["status"], told["tokens_out"]) == (200, 24)


def test_an_unknown_model_is_told_in_the_nodes_words(llm: Llm) -> None:
    assert f"known models: {REAL}, {EMBEDS}" in llm.run("-m", "nobody", "hello", status=1)


def test_a_process_that_is_ended_frees_its_slot(llm: Llm, real_node: Node) -> None:
    words = ["-m", REAL, "-o", "max_tokens", str(ENDLESS), "Tell me all."]
    pipe = subprocess.PIPE
    with subprocess.Popen([*llm.command, *words], env=llm.env, stdin=subprocess.DEVNULL, stdout=pipe) as process:
        until(lambda: "running" in real_node.slots(REAL), "it runs")
        process.terminate()
    until(lambda: real_node.idle(REAL), "the slot is free again", 10)

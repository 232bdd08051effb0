"""A whole node with engine mlx, as its user meets it: OpenAI's own client, two sessions, a wrong name."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from .conftest import prose, until

pytest.importorskip("mlx_lm", reason="mlx_lm is not installed for this Python")
openai = pytest.importorskip("openai")

pytestmark = pytest.mark.slow

SECRET = base64.b64encode(bytes(range(32))).decode()


@dataclass
class Node:
    """A running node."""

    process: subprocess.Popen[bytes]
    log: Path
    url: str = ""

    def events(self, event: str) -> list[dict[str, Any]]:
        lines = [line for line in self.log.read_text(errors="replace").splitlines(keepends=True) if line.endswith("\n")]
        told = [json.loads(line) for line in lines if line.startswith("{")]
        return [line for line in told if line["event"] == event]

    def listening(self) -> str | None:
        assert self.process.poll() is None, self.log.read_text()
        return next((line["api"] for line in self.events("starting")), None)

    def model(self) -> dict[str, Any]:
        status = httpx.get(f"{self.url}/v1/status", trust_env=False, timeout=20).json()
        (found,) = status["models"]
        return dict(found)

    def backend(self) -> dict[str, Any]:
        (found,) = self.model()["backends"]
        return dict(found)

    def ready(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        try:
            return bool(self.backend()["status"] == "healthy")
        except httpx.TransportError:
            return False

    def idle(self) -> bool:
        return bool(self.model()["busy"] == 0)


@contextmanager
def serving(folder: Path, config: dict[str, Any]) -> Iterator[Node]:
    """`viiwork serve` with this configuration; ended with the block."""
    (folder / "viiwork.yaml").write_text(json.dumps(config))  # JSON is YAML
    program = Path(sys.executable).with_name("viiwork")
    environ = {"PATH": os.environ["PATH"], "HOME": str(folder), "VIIWORK_MESH_SECRET": SECRET, "VIIWORK_PLUGINS": "mlx"}
    command: list[str | Path] = [program, "serve", "--log-json", "--config", folder / "viiwork.yaml"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=log, env=environ)
    node = Node(process, folder / "log")
    try:
        node.url = until(node.listening, "it says where it listens") or ""
        yield node
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        finally:
            process.kill()
            process.wait()


def configuration(folder: Path, model: Path, **more: Any) -> dict[str, Any]:
    entry = {"name": "tiny", "engine": "mlx", "path": str(model), "context": 8192, "parallel": 2, **more}
    return {
        "node": {"name": "mac", "state_dir": str(folder / "state")},
        "api": {"port": 0},
        "mesh": {"network": "none"},
        "gpu": {"vendor": "none"},
        "models": [entry],
    }


@pytest.fixture(scope="module")
def node(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    folder = tmp_path_factory.mktemp("node")
    with serving(folder, configuration(folder, tiny)) as node:
        until(node.ready, "its backend is healthy", 90)
        yield node


@pytest.fixture
def ai(node: Node) -> Iterator[Any]:
    http = openai.DefaultHttpxClient(trust_env=False)
    with openai.OpenAI(base_url=f"{node.url}/v1", api_key="any", http_client=http, max_retries=0) as client:
        yield client
    until(node.idle, "all slots are free")


def chat(ai: Any, messages: list[dict[str, str]], session: str = "one", **more: Any) -> Any:
    headers = {"X-Session-Affinity": session}
    settings = {"model": "tiny", "max_tokens": 16, "temperature": 0, "extra_headers": headers, **more}
    return ai.chat.completions.create(messages=messages, **settings)


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def cached(usage: Any) -> int:
    tokens: int = usage.prompt_tokens_details.cached_tokens
    return tokens


def test_a_conversation_is_read_once(ai: Any) -> None:
    said = [user(prose(600))]
    first = chat(ai, said)
    assert (first.model, first.usage.completion_tokens) == ("tiny", 16)
    said += [{"role": "assistant", "content": first.choices[0].message.content}, user("and then")]
    second = chat(ai, said)
    assert cached(second.usage) >= 0.9 * second.usage.prompt_tokens


def test_a_stream_says_what_the_plain_answer_says(ai: Any) -> None:
    said = [user(prose(80, 3))]
    plain = chat(ai, said).choices[0].message.content
    chunks = list(chat(ai, said, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == plain
    assert chunks[-1].choices[0].finish_reason == "length"
    assert all(chunk.usage is None for chunk in chunks)  # nobody asked
    *_, last = chat(ai, said, stream=True, stream_options={"include_usage": True})
    assert (last.choices, last.usage.completion_tokens) == ([], 16)
    assert cached(last.usage) == last.usage.prompt_tokens - 1


def test_two_sessions_at_once_keep_to_themselves(ai: Any, node: Node) -> None:
    prompts = {name: [user(prose(60, seed))] for name, seed in (("left", 2), ("right", 12))}
    alone = {name: chat(ai, said, name, max_tokens=400).choices[0].message.content for name, said in prompts.items()}
    together: dict[str, str] = {}

    def talk(name: str) -> None:
        together[name] = chat(ai, prompts[name], name, max_tokens=400).choices[0].message.content

    threads = [threading.Thread(target=talk, args=(name,)) for name in prompts]
    for thread in threads:
        thread.start()
    most = until(lambda: node.model()["busy"] == 2 or not any(thread.is_alive() for thread in threads), "both run")
    for thread in threads:
        thread.join()
    assert most
    assert together == alone
    for name, said in prompts.items():
        assert cached(chat(ai, said, name, max_tokens=1).usage) > 50


def test_a_wrong_name_is_viiworks_404_and_unloads_nothing(ai: Any, node: Node) -> None:
    said = [user(prose(300, 4))]
    chat(ai, said, "named")
    before = node.backend()
    for _ in range(3):
        with pytest.raises(openai.NotFoundError) as caught:
            chat(ai, said, "named", model="mlx-community/another")
        assert caught.value.body["src"] == "viiwork"
    again = chat(ai, said, "named")
    assert cached(again.usage) == again.usage.prompt_tokens - 1
    after = node.backend()
    assert (after["pid"], after["respawns"], after["status"]) == (before["pid"], 0, "healthy")


def test_an_alias_reaches_the_model(ai: Any, node: Node) -> None:
    address, environ = node.log.parent / "viiwork.yaml", {"PATH": os.environ["PATH"], "HOME": str(node.log.parent)}
    program = Path(sys.executable).with_name("viiwork")
    command: list[str | Path] = [program, "alias", "set", "nickname", "tiny", "--config", address]
    subprocess.run(command, env={**environ, "VIIWORK_MESH_SECRET": SECRET}, check=True, capture_output=True)
    assert chat(ai, [user("hello")], model="nickname").usage.completion_tokens == 16


@pytest.mark.parametrize("wrong", [{"stop": [5]}, {"logit_bias": {"99999999": 1}}, {"messages": []}])
def test_a_bad_request_is_a_400_and_harms_nobody(ai: Any, node: Node, wrong: dict[str, Any]) -> None:
    before = node.backend()["pid"]
    body = {"model": "tiny", "messages": [user("hello")], "max_tokens": 4, **wrong}
    answer = httpx.post(f"{node.url}/v1/chat/completions", json=body, trust_env=False, timeout=60)
    assert answer.status_code == 400
    assert chat(ai, [user("hello")]).usage.completion_tokens == 16
    assert node.backend()["pid"] == before


def test_a_client_that_leaves_frees_its_slot(node: Node) -> None:
    body = {"model": "tiny", "messages": [user("go on")], "max_tokens": 8000, "stream": True}
    with httpx.stream("POST", f"{node.url}/v1/chat/completions", json=body, trust_env=False, timeout=60) as answer:
        assert next(answer.iter_bytes())
        until(lambda: node.model()["busy"] == 1, "it runs")
    until(node.idle, "its slot is free", 10)


@pytest.mark.parametrize(
    ("lacks", "words"),
    [
        ("tokenizer.json", "has no tokenizer"),
        ("python", "pip install"),
    ],
)
def test_what_is_missing_is_said_in_one_sentence(tiny: Path, tmp_path: Path, lacks: str, words: str) -> None:
    """A folder without a tokenizer, and a Python without MLX: `viiwork config check` names them, before a start."""
    model, more = tmp_path / "model", {}
    model.mkdir()
    for file in tiny.iterdir():
        if lacks == "python" or not file.name.startswith("tokenizer"):
            (model / file.name).symlink_to(file)
    if lacks == "python":
        bare = tmp_path / "bare"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", bare], check=True)
        more = {"mlx": {"python": str(bare / "bin" / "python")}}
    with serving(tmp_path, configuration(tmp_path, model, **more)) as node:
        until(lambda: "tiny: " in node.log.read_text() and words in node.log.read_text(), words)
        told = [line for line in node.log.read_text().splitlines() if words in line]
        assert len(told) >= 1
        assert "model tiny: " in told[0]

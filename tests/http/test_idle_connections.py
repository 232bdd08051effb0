"""Thousands of connections that say nothing, or half of something, cost memory and nothing else."""

from __future__ import annotations

import asyncio
import json
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from http_node import Node, ask, chat, connected, model, started, until

MANY = 10_000
SPARE = 600
"""Files that this process and the node need besides, and connections that the test itself has."""

HOLDER = """
import resource, socket, sys
host, port, wanted, text = sys.argv[1:]
text = text.encode().decode("unicode_escape").encode("latin-1")
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
held = []
for _ in range(int(wanted)):
    one = socket.create_connection((host, int(port)), timeout=30)
    one.sendall(text)
    held.append(one)
print(len(held), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with started("one", tmp_path / "one", {"models": [model("m", "fake")]}) as made:
        yield made


@contextmanager
def held(node: Node, number: int, text: str) -> Iterator[int]:
    """Connections of another process, each with `text` sent; how many there are."""
    command = [sys.executable, "-c", HOLDER, node.host, str(node.port), str(number), text]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        yield int(holder.stdout.readline())


def sockets(node: Node) -> int:
    return sum(one.status == psutil.CONN_ESTABLISHED for one in psutil.Process(node.process.pid).net_connections("tcp"))


def answered(node: Node) -> None:
    answer = asyncio.run(ask(node, chat("m", max_tokens=3)))
    assert answer.status == 200
    assert json.loads(answer.body)["choices"]


@pytest.mark.slow
def test_ten_thousand_idle_connections(node: Node, capfd: pytest.CaptureFixture[str]) -> None:
    """As many as the node has room for on this machine, ten thousand at most. Their cost is told, not judged."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    fewer = node.events("fewer connections than api.max_connections")
    room = fewer[0]["connections"] - SPARE if fewer else MANY
    number = min(MANY, room, MANY if limit == resource.RLIM_INFINITY else limit - SPARE)
    before = psutil.Process(node.process.pid).memory_info().rss
    with held(node, number, "") as there:
        assert there == number
        until(lambda: sockets(node) >= number, "the node has them all", 60)
        for _ in range(5):
            answered(node)
        grown = psutil.Process(node.process.pid).memory_info().rss - before
    told = f"{number} idle connections: {grown >> 20} MiB more, {grown / number / 1024:.1f} KiB each"
    with capfd.disabled():
        sys.stdout.write(f"\n{told}\n")
    until(lambda: sockets(node) < 100, "they are gone with their client", 60)
    answered(node)
    assert node.process.poll() is None


HEAD = "POST /v1/chat/completions HTTP/1.1\\r\\nHost: node\\r\\n"


@pytest.mark.parametrize(
    "text",
    [
        "P",
        HEAD,
        HEAD + "Content-Length: 100\\r\\n\\r\\n{",
        HEAD + "Transfer-Encoding: chunked\\r\\n\\r\\n10\\r\\n{",
        HEAD + "Expect: 100-continue\\r\\nContent-Length: 100\\r\\n\\r\\n",
    ],
)
def test_half_a_request_takes_no_slot(node: Node, text: str) -> None:
    """However many there are and however long they stay: only whole requests wait for slots."""
    with held(node, 50, text) as there:
        assert there == 50
        until(lambda: sockets(node) >= 50, "the node has them all")
        assert node.idle("m")
        for _ in range(3):
            answered(node)
    until(lambda: sockets(node) < 50, "they are gone with their client")
    assert "Traceback" not in node.log()


def test_half_a_request_does_not_hold_up_a_stop(node: Node) -> None:
    with held(node, 5, HEAD + "Content-Length: 100\\r\\n\\r\\n{") as there:
        assert there == 5
        until(lambda: sockets(node) >= 5, "the node has them all")
        node.process.terminate()
        assert node.process.wait(15) == 0


def test_the_rest_of_a_request_may_come_later(node: Node) -> None:
    async def scene() -> None:
        body = chat("m", max_tokens=3)
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: node\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        async with connected(node) as client:
            await client.send(head + body[:10])
            for _ in range(3):
                assert (await ask(node, chat("m", max_tokens=3))).status == 200
            await client.send(body[10:])
            assert (await client.answer()).status == 200

    asyncio.run(scene())

"""A replica past HTTP at a running node: what a member, a stranger or a cable may do to the connection."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import h2.config
import h2.connection
import http_node
import psutil
import pytest
from blake3 import blake3
from http_node import HERE, Node, chat, model, plugin_path, script, started, until
from meshes import free_port, mesh_at

from viiwork_core.clock import SystemClock
from viiwork_core.kvshare.sealing import BLOCK, TransferHeader, seal
from viiwork_core.security.secret import MeshSecret
from viiwork_core.security.signing import STREAMED, Signer

PATH = "/v1/kv/replicas"
HOST = "127.0.0.58"
SECRET = MeshSecret.from_bytes(bytes(range(32)))
MOST = 64
"""Connections of the node."""

OWN = 4
"""Of these, those that it or `until` may have at the time."""

Header = tuple[str, str]
UPGRADE: Sequence[Header] = (("Connection", "Upgrade"), ("Upgrade", "viiwork-replica"))
HEALTH = b"GET /health HTTP/1.1\r\nHost: node\r\n\r\n"


def configuration(**more: Any) -> dict[str, Any]:
    """A node of a mesh that nobody else is in."""
    return {
        "mesh": mesh_at(HOST, free_port(HOST), [f"{HOST}:{free_port(HOST)}"]),
        "models": [model("m", "scripted-shared", kv_share={"group": "g", "min_tokens": 1})],
        "api": {"port": 0, "max_connections": MOST},
        **more,
    }


@pytest.fixture(scope="module")
def member(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with started("beta", tmp_path_factory.mktemp("upgrade") / "beta", configuration()) as node:
        until(lambda: node.get("/v1/capacity")["models"][0].get("kv"), "its caches are shared")
        yield node


@pytest.fixture(autouse=True)
def _nothing_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """The shared node has no connection more, and nothing has gone wrong in it."""
    yield
    if "member" in request.fixturenames:
        node: Node = request.getfixturevalue("member")
        until(lambda: not clients(node), "all connections are closed")
        assert node.answers()
        assert "Traceback" not in node.log()


def clients(node: Node) -> set[int]:
    """The ports from which others are connected to the node, which asks itself at times."""
    there = [one for one in psutil.Process(node.process.pid).net_connections("tcp") if one.raddr]
    return {one.raddr.port for one in there if one.laddr.port == node.port} - {one.laddr.port for one in there}


def lies(node: Node) -> list[str]:
    """The kinds of files in the node's store."""
    return sorted(path.suffix for path in (node.folder / "state" / "kv" / "replicas").iterdir())


def sessions(node: Node) -> set[str]:
    return {held["session"] for held in node.get("/v1/kv")["sessions"] if held["where"] == "replica"}


def sealed(node: Node, data: bytes, session: str, **claims: Any) -> list[bytes]:
    """The pieces of a stream: its header, blocks of a MiB, and its hash."""
    (told,) = node.get("/v1/capacity")["models"]
    fields = {"model": "m", "session": session, "turn": 1, "tokens": 6, **told["kv"], **claims}
    header = TransferHeader(**{"length": len(data), **fields})
    blocks = [data[at : at + BLOCK] for at in range(header.start, len(data), BLOCK)]
    return list(map(bytes, seal(SECRET.replica, header, blocks, blake3(data).digest)))


def head(node: Node, *more: Header, version: str = "1.1", signed: bool = True, upgrade: bool = True) -> bytes:
    """Of an upload, as a member signs it."""
    headers = [*(UPGRADE if upgrade else ()), *more, ("X-Viiwork-To", node.get("/v1/status")["node_id"])]
    if signed:
        headers += Signer(SECRET.signature, node="alpha", clock=SystemClock()).sign("PUT", PATH, headers, STREAMED)
    lines = [f"PUT {PATH} HTTP/{version}", "Host: node", *(f"{name}: {value}" for name, value in headers), "", ""]
    return "\r\n".join(lines).encode()


class Wire:
    """A connection to a node."""

    def __init__(self, node: Node) -> None:
        self.socket = socket.create_connection((node.host, node.port), timeout=20)
        self.headers: dict[str, str] = {}
        """Of the last answer."""

        self._file = self.socket.makefile("rb")

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self.socket.close()

    def send(self, *data: bytes) -> None:
        self.socket.sendall(b"".join(data))

    def status(self) -> int:
        """Of the next answer, whose headers are read with it; 0: the connection ended."""
        line = self._file.readline()
        lines = iter(self._file.readline, b"\r\n")
        self.headers = dict(one.decode().lower().rstrip().split(": ", 1) for one in lines) if line else {}
        return int(line.split()[1]) if line else 0

    def switched(self) -> None:
        """The connection has left HTTP."""
        assert self.status() == 101

    def answer(self) -> tuple[int, dict[str, Any]]:
        """Status and body of the next answer."""
        status = self.status()
        return status, json.loads(self._file.read(int(self.headers["content-length"])))

    def read(self, size: int) -> bytes:
        """So many bytes; fewer: the connection ended."""
        return self._file.read(size)

    def code(self) -> tuple[int, str]:
        status, told = self.answer()
        return status, told["error"]["code"]

    def over(self) -> bool:
        """Whether the node has closed it, once it has."""
        try:
            return self._file.read(1) == b""
        except ConnectionError:
            return True


def key(number: int) -> str:
    """A session of one test."""
    return f"{number:032x}"


def test_a_replica_past_http(member: Node) -> None:
    data = os.urandom(5 * BLOCK + 3)
    with Wire(member) as wire:
        wire.send(head(member))
        wire.switched()
        wire.send(*sealed(member, data, key(1)))
        assert wire.answer() == (200, {"stored": True})
        assert wire.over()
    assert key(1) in sessions(member)
    files = [path for path in (member.folder / "state/kv/replicas").glob("*.kv") if path.read_bytes() == data]
    assert len(files) == 1


def test_two_at_once(member: Node) -> None:
    data = os.urandom(2 * BLOCK)
    one, other = (sealed(member, data, key(number)) for number in (2, 3))
    with Wire(member) as slow, Wire(member) as fast:
        for wire in (slow, fast):
            wire.send(head(member))
            wire.switched()
        slow.send(*one[:2])
        fast.send(*other)
        assert fast.answer()[0] == 200
        slow.send(*one[2:])
        assert slow.answer()[0] == 200
    assert {key(2), key(3)} <= sessions(member)


@pytest.mark.parametrize("signed", [False, True])
def test_a_stranger_is_answered_in_http_and_may_ask_on(member: Node, signed: bool) -> None:
    with Wire(member) as wire:
        forged = head(member).replace(b"X-Viiwork-Auth: ", b"X-Viiwork-Auth: f")
        wire.send(forged if signed else head(member, signed=False))
        assert wire.code() == (401, "unproven")
        wire.send(HEALTH)
        assert wire.answer()[0] == 200


def test_an_upgrade_elsewhere_is_none(member: Node) -> None:
    asked = chat("m")
    lines = b"Host: node\r\nConnection: Upgrade\r\nUpgrade: viiwork-replica\r\n"
    with Wire(member) as wire:
        for path, status in ((b"/health", 200), (b"/v1/capacity", 200), (b"/v1/kv/replicas", 405), (b"/nowhere", 404)):
            wire.send(b"GET %b HTTP/1.1\r\n%b\r\n" % (path, lines))
            assert wire.answer()[0] == status
        wire.send(b"POST /v1/chat/completions HTTP/1.1\r\n%bContent-Length: %d\r\n\r\n" % (lines, len(asked)), asked)
        assert wire.answer()[0] == 200
        wire.send(HEALTH)
        assert wire.answer()[0] == 200


def test_another_protocol_is_not_spoken(member: Node) -> None:
    with Wire(member) as wire:
        others = (("Connection", "Upgrade"), ("Upgrade", "something-else"))
        wire.send(head(member, *others, upgrade=False))
        assert wire.code() == (422, "cache_refused"), "a body of no bytes"
        wire.send(HEALTH)
        assert wire.answer()[0] == 200


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_is_the_stream_whatever_else_is_asked(member: Node, chunked: bool) -> None:
    """A server may ignore an upgrade, and what comes is not to be dropped."""
    stream = b"".join(sealed(member, os.urandom(BLOCK), key(4 + chunked)))
    framing = ("Transfer-Encoding", "chunked") if chunked else ("Content-Length", str(len(stream)))
    with Wire(member) as wire:
        wire.send(head(member, framing), b"%x\r\n%b\r\n0\r\n\r\n" % (len(stream), stream) if chunked else stream)
        assert wire.answer() == (200, {"stored": True})
        wire.send(HEALTH)
        assert wire.answer()[0] == 200
    assert key(4 + chunked) in sessions(member)


def test_who_does_not_wait_for_the_answer_is_refused(member: Node) -> None:
    """What came with the head has gone into HTTP's hands: the rest of it would be half a stream."""
    stream = b"".join(sealed(member, os.urandom(1000), key(6)))
    with Wire(member) as wire:
        wire.send(head(member), stream)
        assert wire.code() == (400, "invalid_request")
        assert wire.status() == 400, "which is no request either"
        assert wire.over()
    assert key(6) not in sessions(member)


def test_what_comes_a_little_after_the_head_is_refused_or_taken_whole(member: Node) -> None:
    """Twenty times, since it is a race: never half of it, and no waiting for the rest."""
    stream = b"".join(sealed(member, os.urandom(1000), key(7)))
    for _ in range(20):
        with Wire(member) as wire:
            wire.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            wire.send(head(member))
            wire.send(stream)
            status = wire.status()
            assert status in (400, 101)
            if status == 101:
                assert wire.answer()[0] in (200, 422), "all of it, the second time not newer"


def test_a_request_behind_an_upgrade_is_refused_with_it(member: Node) -> None:
    with Wire(member) as wire:
        wire.send(head(member), HEALTH)
        assert wire.code() == (400, "invalid_request")
        assert wire.answer()[0] == 200, "and has its own answer"
        wire.send(HEALTH)
        assert wire.answer()[0] == 200


def test_a_request_in_front_of_an_upgrade_is_answered(member: Node) -> None:
    with Wire(member) as wire:
        wire.send(HEALTH, HEALTH, head(member))
        for _ in range(2):
            assert wire.answer()[0] == 200
        wire.switched()
        wire.send(*sealed(member, b"after others", key(8)))
        assert wire.answer()[0] == 200


def test_a_large_answer_in_front_of_an_upgrade_is_whole(member: Node) -> None:
    """Whether or not the last of it has gone out by the time the connection is asked for."""
    asked, size = chat("m", script(("big", 8 * BLOCK))), 8 * BLOCK
    lines = b"Host: node\r\nContent-Type: application/json\r\nContent-Length: %d\r\n" % len(asked)
    with Wire(member) as wire:
        wire.send(b"POST /v1/chat/completions HTTP/1.1\r\n%b\r\n" % lines, asked, head(member))
        assert wire.status() == 200
        assert wire.read(size) == b"x" * size
        assert wire.status() in (101, 400)


def test_a_request_past_http_is_no_stream(member: Node) -> None:
    with Wire(member) as wire:
        wire.send(head(member))
        wire.switched()
        wire.send(HEALTH)
        assert wire.code() == (422, "cache_refused")
        assert wire.over()


def test_http_1_0_has_no_upgrade(member: Node) -> None:
    with Wire(member) as wire:
        wire.send(head(member, version="1.0"))
        assert wire.code() == (422, "cache_refused"), "a body of no bytes"
        assert wire.over()


def test_http_2_has_no_upgrade(member: Node) -> None:
    """Its own rules forbid the header; without those the stream is a body that never came."""
    config = h2.config.H2Configuration(validate_outbound_headers=False, normalize_outbound_headers=False)
    client = h2.connection.H2Connection(config)
    client.initiate_connection()
    lines = [line.split(": ", 1) for line in head(member).decode().split("\r\n")[2:-2]]
    fields = [(":method", "PUT"), (":scheme", "http"), (":authority", "node"), (":path", PATH)]
    client.send_headers(1, [*fields, *((name.lower(), value) for name, value in lines)], end_stream=True)
    got = b""
    with Wire(member) as wire:
        wire.send(client.data_to_send())
        wire.socket.shutdown(socket.SHUT_WR)
        while piece := wire.socket.recv(1 << 16):
            got += piece
    assert b"101" not in got


def test_a_head_is_worth_one_upgrade(member: Node) -> None:
    said = head(member)
    with Wire(member) as wire, Wire(member) as thief:
        wire.send(said)
        wire.switched()
        thief.send(said)
        assert thief.code() == (401, "unproven")
        wire.send(*sealed(member, b"once", key(9)))
        assert wire.answer()[0] == 200


def test_100_continue_is_not_expected(member: Node) -> None:
    with Wire(member) as wire:
        wire.send(head(member, ("Expect", "100-continue")))
        while (status := wire.status()) == 100:
            pass
        assert status == 101
        wire.send(*sealed(member, b"expected", key(10)))
        assert wire.answer()[0] == 200


def test_a_refusal_reaches_who_still_sends(member: Node) -> None:
    """Its code, each time, and not a broken pipe."""
    (first, second, *_) = sealed(member, bytes(BLOCK), key(11), group="another", length=64 * BLOCK)
    for _ in range(20):
        with Wire(member) as wire:
            wire.send(head(member))
            wire.switched()
            wire.send(first, second)
            flood = threading.Thread(target=send_what_goes, args=(wire.socket, bytes(64 * BLOCK)))
            flood.start()
            try:
                assert wire.code() == (409, "fingerprint_mismatch")
            finally:
                wire.socket.shutdown(socket.SHUT_RDWR)
                flood.join()


def send_what_goes(connection: socket.socket, data: bytes) -> None:
    try:
        connection.sendall(data)
    except OSError:
        return


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("after", ["the head", "the 101", "the header", "a block", "all"])
def test_200_that_hang_up(member: Node, after: str, reset: bool) -> None:
    process = psutil.Process(member.process.pid)
    pieces = sealed(member, os.urandom(1000), key(12))
    sent = {"the header": pieces[:1], "a block": pieces[:2], "all": pieces}.get(after, [])
    threads: list[int] = []
    for _ in range(200):
        with Wire(member) as wire:
            wire.send(head(member))
            if after != "the head":
                wire.switched()
            wire.send(*sent)
            if reset:
                wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        threads.append(process.num_threads())
    until(lambda: not clients(member), "all connections end")
    assert max(threads) < MOST, "one each as long as it is there, and then the next one's"
    with ExitStack() as stack:
        for _ in range(MOST - OWN):
            wire = stack.enter_context(Wire(member))
            wire.send(HEALTH)
            assert wire.answer()[0] == 200, "none is still counted"


def test_those_past_http_count_as_connections(member: Node) -> None:
    """Till there is no room; and no more than that once they have left."""
    heads, switched = [head(member) for _ in range(MOST + 1)], 0
    with ExitStack() as stack:
        for one in heads:
            wire = stack.enter_context(Wire(member))
            wire.send(one)
            if (status := wire.status()) != 101:
                break
            switched += 1
        assert status == 503
        assert MOST - OWN <= switched <= MOST
    until(lambda: asks(member) == 200, "there is room again")


def asks(node: Node) -> int:
    with Wire(node) as wire:
        wire.send(HEALTH)
        return wire.answer()[0]


def test_who_does_not_read_the_answer_is_left(member: Node) -> None:
    with Wire(member) as wire:
        wire.send(head(member))
        wire.switched()
        wire.send(*sealed(member, b"unread", key(13)))
        until(lambda: key(13) in sessions(member), "it is stored")
        until(lambda: wire.socket.getsockname()[1] not in clients(member), "the connection is closed")


def test_what_broke_off_goes_on(member: Node) -> None:
    data = os.urandom(3 * BLOCK)
    with Wire(member) as wire:
        wire.send(head(member))
        wire.switched()
        wire.send(*sealed(member, data, key(14))[:3])

    def asked() -> str:
        """The byte to go on from."""
        with Wire(member) as wire:
            wire.send(head(member))
            wire.switched()
            wire.send(*sealed(member, data, key(14), start=len(data)))
            assert wire.code()[1] == "resume"
            return wire.headers["x-viiwork-offset"]

    until(lambda: asked() == str(2 * BLOCK), "the node has noticed")
    with Wire(member) as wire:
        wire.send(head(member))
        wire.switched()
        wire.send(*sealed(member, data, key(14), start=2 * BLOCK))
        assert wire.answer()[0] == 200


@pytest.mark.parametrize("sent", [0, 1, 3])
def test_a_stop_ends_a_transfer_within_its_grace(tmp_path: Path, sent: int) -> None:
    config = configuration(health={"respawn_grace": "1s"})
    with started("beta", tmp_path / "beta", config) as node:
        until(lambda: node.get("/v1/capacity")["models"][0].get("kv"), "its caches are shared")
        with Wire(node) as wire:
            wire.send(head(node))
            wire.switched()
            wire.send(*sealed(node, os.urandom(4 * BLOCK), key(15))[:sent])
            if sent > 1:
                until(lambda: lies(node), "it has begun")
            node.process.terminate()
            assert wire.over()
        assert node.process.wait(20) == 0
        assert "Traceback" not in node.log()
        assert set(lies(node)) <= {".tmp"}
    with started("beta", tmp_path / "beta", config) as node:
        until(lambda: not lies(node), "what was left is swept")


def test_a_node_without_shared_caches_says_so(tmp_path: Path) -> None:
    """At once, and in HTTP."""
    config = configuration(models=[model("m", "scripted")])
    with started("beta", tmp_path / "beta", config) as node, Wire(node) as wire:
        wire.send(head(node))
        assert wire.code() == (422, "cache_refused")


@contextmanager
def hosted(folder: Path, server: str) -> Iterator[Node]:
    """A node under another server than its own, which cannot take a connection out of HTTP."""
    with socket.create_server(("127.0.0.1", 0)) as one:
        port: int = one.getsockname()[1]
    config = {
        **configuration(api={"port": port}),
        "node": {"name": "guest", "state_dir": str(folder / "state")},
        "mesh": mesh_at("127.0.0.1", free_port("127.0.0.1"), [f"127.0.0.1:{free_port('127.0.0.1')}"]),
    }
    (folder / "viiwork.yaml").write_text(json.dumps(config))
    environ = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "PYTHONPATH": plugin_path(folder / "site"),
        "VIIWORK_PLUGINS": "fake,scripted",
        "VIIWORK_MESH_SECRET": http_node.SECRET,
        "CONFIG": str(folder / "viiwork.yaml"),
    }
    command = [sys.executable, HERE / "asgi_program.py", str(port), server]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environ)
    node = Node("guest", folder, process)
    node.port = port
    try:
        until(lambda: node.answers() and node.get("/v1/capacity")["models"][0].get("kv"), "its caches are shared")
        yield node
    finally:
        process.terminate()
        process.wait(30)


@pytest.mark.parametrize("server", ["uvicorn", "granian"])
def test_a_server_that_cannot_leave_http_takes_a_body(tmp_path: Path, server: str) -> None:
    with hosted(tmp_path, server) as node:
        with Wire(node) as wire:
            wire.send(head(node))
            assert wire.code() == (501, "upgrade_unsupported")
        stream = b"".join(sealed(node, b"as ever", key(18)))
        with Wire(node) as wire:
            wire.send(head(node, ("Content-Length", str(len(stream))), upgrade=False), stream)
            assert wire.answer() == (200, {"stored": True})
        assert key(18) in sessions(node)


def ended(node: Node) -> int:
    """The status of a drain that ends the node."""
    body = json.dumps({"then": "stop"}).encode()
    headers = Signer(SECRET.signature, node="alpha", clock=SystemClock()).sign("POST", "/v1/drain", [], body)
    headers += [("Host", "node"), ("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
    with Wire(node) as wire:
        lines = ["POST /v1/drain HTTP/1.1", *(f"{name}: {value}" for name, value in headers), "", ""]
        wire.send("\r\n".join(lines).encode(), body)
        return wire.answer()[0]


def test_a_drain_does_not_wait_for_who_says_nothing(tmp_path: Path) -> None:
    with started("beta", tmp_path / "beta", configuration(health={"respawn_grace": "1s"})) as node:
        until(lambda: node.get("/v1/capacity")["models"][0].get("kv"), "its caches are shared")
        with Wire(node) as wire:
            wire.send(head(node))
            wire.switched()
            wire.send(*sealed(node, os.urandom(BLOCK), key(17))[:1])
            assert ended(node) == 200
            assert wire.over()
        assert node.process.wait(20) == 0

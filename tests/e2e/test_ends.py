"""How a node ends, and what that means to the other one."""

from __future__ import annotations

from contextlib import closing

import psutil
from mesh import FIRST, SECOND, Mesh
from nodes import until, user

HELLO = [user("What is new in town?")]


def alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_killed_node_leaves_no_engine_and_the_other_serves_on(own_mesh: Mesh) -> None:
    first, second = own_mesh.first, own_mesh.second
    engine, children = first.engine(), first.children()
    assert engine in children
    with first.held(FIRST):
        first.process.kill()
        first.process.wait()
        # Of these sessions some belong to the dead node by their hash; none may notice.
        answers = [second.chat(HELLO, session=f"session {number}") for number in range(8)]
    assert [answer.headers.get("x-viiwork-node") for answer in answers] == [SECOND] * 8
    until(lambda: not any(map(alive, children)), "all that the killed node had started is gone", within=5)

    until(lambda: second.members() == set(), "the other node knows")
    assert second.chat(HELLO).text
    reply = second.chat(HELLO, host=FIRST)
    assert reply.status == 404
    assert reply.error["message"].startswith(f'model "tiny" is not served by host "{FIRST}"')


def test_a_stopped_node_ends_in_order(own_mesh: Mesh) -> None:
    """Also while connections to it are open that nobody uses: a client's, and those of the other node's polls."""
    first, second = own_mesh.first, own_mesh.second
    children, identity = second.children(), second.folder / "state" / "node.json"
    assert second.engine() in children
    assert identity.exists()
    with closing(second.host.connect(second.host.address, second.port)) as idle:
        idle.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert idle.recv(12) == b"HTTP/1.1 200"
        assert second.end() == 0
    assert not any(map(alive, children))
    assert not identity.exists()
    until(lambda: first.members() == set(), "the other node was told")
    assert first.chat(HELLO).text

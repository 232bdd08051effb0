"""Two nodes that became one endpoint: who is in, where a request goes, and what a node believes of another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from mesh import FIRST, SECOND, SLOTS, Mesh, configuration, new_secret
from nodes import CHAT, MODEL, Node, Reply, chat_body, started, until, user

from viiwork_core.clock import SystemClock
from viiwork_core.security.secret import MeshSecret
from viiwork_core.security.signing import Signer
from viiwork_core.testing.fake_clock import FakeClock

HELLO = [user("What is new in town?")]
Header = tuple[str, str]


@contextmanager
def full(node: Node) -> Iterator[ExitStack]:
    """All slots of a node taken. Closing what the block gets frees one."""
    with ExitStack() as others, ExitStack() as one:
        one.enter_context(node.held(node.name))
        for _ in range(SLOTS - 1):
            others.enter_context(node.held(node.name))
        yield one


def test_they_find_each_other_by_one_seed(mesh: Mesh) -> None:
    for node, other in ((mesh.first, mesh.second), (mesh.second, mesh.first)):
        status = node.get("/v1/status").json
        assert status["mesh"] == "secured"
        assert status["members"] == [{"node": other.name, "addr": other.host.address, "role": "node", "suspect": False}]
        assert [model["id"] for model in node.get("/v1/models").json["data"]] == [MODEL]


def test_a_node_with_another_secret_stays_out(mesh: Mesh, tmp_path: Path) -> None:
    host = mesh.hosts.second
    config = configuration("stranger", host, tmp_path / "stranger", seeds=[mesh.gossip], port=host.free_port())
    with started(host, "stranger", tmp_path / "stranger", config, new_secret()) as stranger:
        (line,) = stranger.heard("could not join", address=mesh.gossip)
        assert "another secret" in line["reason"]
        until(stranger.healthy, "the stranger serves")
        assert stranger.members() == set()
        assert stranger.get("/v1/models").json["data"] == []
        assert mesh.first.members() == {SECOND}


def test_a_full_node_forwards(mesh: Mesh) -> None:
    with full(mesh.first):
        assert mesh.first.busy() == SLOTS
        reply = mesh.first.chat(HELLO)
    assert reply.text
    assert reply.headers["x-viiwork-node"] == SECOND
    assert reply.headers["x-viiwork-origin"] == FIRST
    assert reply.headers["x-gpu-backend"] == f"{MODEL}/0"


def test_a_node_with_room_serves_itself(mesh: Mesh) -> None:
    reply = mesh.first.chat(HELLO)
    assert reply.text
    assert reply.headers["x-viiwork-node"] == FIRST
    assert "x-viiwork-origin" not in reply.headers


@pytest.mark.parametrize("freed", [FIRST, SECOND])
def test_a_request_waits_for_the_first_slot_on_any_node(mesh: Mesh, freed: str) -> None:
    with full(mesh.first) as one_of_first, full(mesh.second) as one_of_second, ThreadPoolExecutor() as threads:
        waiting = threads.submit(mesh.first.chat, HELLO)
        until(lambda: mesh.first.queued() == 1, "the request waits")
        (one_of_first if freed == FIRST else one_of_second).close()
        reply = waiting.result()
    assert reply.text
    assert reply.headers["x-viiwork-node"] == freed
    assert int(reply.headers["x-viiwork-queued-ms"]) > 0


def test_a_request_does_not_wait_for_ever(mesh: Mesh) -> None:
    with full(mesh.first), full(mesh.second):
        reply = mesh.first.chat(HELLO)
        assert mesh.first.queued() == 0
    assert reply.status == 429
    assert reply.headers["retry-after"] == "2"
    assert reply.error["type"] == "rate_limit"
    assert reply.error["message"] == f"no free slot for {MODEL} within 3s"


# What the receiver of a forward believes


def forwarded(mesh: Mesh, signer: Signer | None = None, *, body: bytes = b"", claims: Sequence[Header] = ()) -> Reply:
    """A forward to the second node, signed as the first one would, but for what is given."""
    body = body or chat_body(HELLO)
    headers = [("Content-Type", "application/json"), *(claims or honest(mesh))]
    headers += (signer or mesh.signer()).sign("POST", CHAT, headers, body)
    return mesh.second.request("POST", CHAT, body, dict(headers))


def honest(mesh: Mesh, **changed: str) -> list[Header]:
    to = mesh.second.get("/v1/status").json["node_id"]
    return list({"X-Viiwork-Forwarded": FIRST, "X-Viiwork-To": to, **changed}.items())


def assert_unproven(reply: Reply, reason: str) -> None:
    assert reply.status == 401
    assert reply.error["code"] == "unproven"
    assert reply.error["src"] == "viiwork"
    assert reply.error["message"].startswith(reason)
    assert "retry-after" not in reply.headers


def test_a_proven_forward_is_served(mesh: Mesh) -> None:
    reply = forwarded(mesh)
    assert reply.text
    assert reply.headers["x-viiwork-node"] == SECOND


def test_an_unsigned_forward_is_refused(mesh: Mesh) -> None:
    reply = mesh.second.request("POST", CHAT, chat_body(HELLO), {"X-Viiwork-Forwarded": FIRST})
    assert_unproven(reply, "missing: X-Viiwork-Ts")


def test_a_forward_signed_with_another_secret_is_refused(mesh: Mesh) -> None:
    stranger = MeshSecret.from_bytes(bytes(32))
    assert_unproven(forwarded(mesh, Signer(stranger.signature, node=FIRST, clock=SystemClock())), "secret:")


def test_a_forward_that_was_changed_is_refused(mesh: Mesh) -> None:
    body = chat_body(HELLO)
    headers = [*honest(mesh), ("X-Viiwork-Session", "a" * 32)]
    headers += mesh.signer().sign("POST", CHAT, headers, body)
    changed = {**dict(headers), "X-Viiwork-Session": "b" * 32}
    assert_unproven(mesh.second.request("POST", CHAT, body, changed), "secret:")
    assert_unproven(mesh.second.request("POST", CHAT, body + b" ", dict(headers)), "secret:")
    assert_unproven(mesh.second.request("POST", f"{CHAT}?a=b", body, dict(headers)), "secret:")


def test_a_replayed_forward_is_refused(mesh: Mesh) -> None:
    body = chat_body(HELLO)
    headers = honest(mesh)
    headers += mesh.signer().sign("POST", CHAT, headers, body)
    assert mesh.second.request("POST", CHAT, body, dict(headers)).text
    assert_unproven(mesh.second.request("POST", CHAT, body, dict(headers)), "nonce replayed")


def test_a_forward_to_another_node_is_refused(mesh: Mesh) -> None:
    claims = honest(mesh, **{"X-Viiwork-To": mesh.first.get("/v1/status").json["node_id"]})
    assert_unproven(forwarded(mesh, claims=claims), "addressee:")


def test_a_forward_in_the_name_of_another_is_refused(mesh: Mesh) -> None:
    assert_unproven(forwarded(mesh, claims=honest(mesh, **{"X-Viiwork-Forwarded": "gamma"})), "origin:")


def test_an_old_forward_is_refused(mesh: Mesh) -> None:
    key = mesh.keys.signature
    late = FakeClock(wall=SystemClock().wall() - 600)
    assert_unproven(forwarded(mesh, Signer(key, node=FIRST, clock=late)), "skew:")


def test_the_receiver_neither_queues_nor_forwards_again(mesh: Mesh) -> None:
    with full(mesh.second):
        reply = forwarded(mesh)
        assert mesh.second.queued() == 0
    assert reply.status == 429
    assert reply.error["message"] == "no free slot"
    assert "retry-after" not in reply.headers
    assert reply.headers["x-viiwork-node"] == mesh.second.name
    assert "x-viiwork-backend" not in reply.headers


def test_a_forward_for_an_unknown_model_goes_elsewhere(mesh: Mesh) -> None:
    reply = forwarded(mesh, body=chat_body(HELLO, model="unheard-of"))
    assert reply.status == 503
    assert reply.headers["retry-after"] == "1"
    assert reply.error["code"] == "model_not_served"

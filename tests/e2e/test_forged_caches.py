"""What a node does with caches that nobody of its mesh sent, that were sent before, or that are not what they say."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import pytest
from blake3 import blake3
from dialogue import COLD, LONG, Conversation
from mesh import FIRST, SECOND, Mesh
from nodes import MODEL, Reply, prose, until

from viiwork_core.clock import SystemClock
from viiwork_core.kvshare.sealing import BLOCK, TransferHeader, seal
from viiwork_core.security.secret import MeshSecret
from viiwork_core.security.signing import STREAMED, Signer
from viiwork_core.testing.fake_clock import FakeClock

PATH = "/v1/kv/replicas"
Header = tuple[str, str]


def sealed(mesh: Mesh, data: bytes, *, key: bytes = b"", **claims: Any) -> bytes:
    """A stream as a member seals it: of the model's own fingerprint, but for what is claimed."""
    (model,) = mesh.second.get("/v1/capacity").json["models"]
    fields = {"model": MODEL, "session": mesh.session_key("forged"), "turn": 9, "tokens": 100, **model["kv"], **claims}
    header = TransferHeader(length=len(data), **fields)
    blocks = [data[at : at + BLOCK] for at in range(0, len(data), BLOCK)]
    return b"".join(map(bytes, seal(key or mesh.keys.replica, header, blocks, blake3(data).digest)))


def signed(mesh: Mesh, signer: Signer | None = None) -> list[Header]:
    """The head of an upload, as the first node signs it."""
    to = mesh.second.get("/v1/status").json["node_id"]
    headers = [("Content-Type", "application/octet-stream"), ("X-Viiwork-To", to)]
    return [*headers, *(signer or mesh.signer()).sign("PUT", PATH, headers, STREAMED)]


def put(mesh: Mesh, stream: bytes, headers: Sequence[Header]) -> Reply:
    return mesh.second.request("PUT", PATH, stream, dict(headers))


def stands(mesh: Mesh) -> bool:
    """Whether nothing of it is at the second node."""
    here = mesh.session_key("forged") in mesh.second.replicas()
    return not here and not [file for file in mesh.second.store.iterdir() if file.suffix == ".tmp"]


def test_who_does_not_know_the_secret_sends_nothing(mesh: Mesh) -> None:
    data, stranger = os.urandom(1000), MeshSecret.from_bytes(bytes(32))
    forger = Signer(stranger.signature, node=FIRST, clock=SystemClock())
    for headers in ([], signed(mesh, forger), signed(mesh)[:-1]):
        reply = put(mesh, sealed(mesh, data), headers)
        assert (reply.status, reply.error["code"]) == (401, "unproven")
    # A head that is really the first node's, and behind it what another one has sealed.
    reply = put(mesh, sealed(mesh, data, key=stranger.replica), signed(mesh))
    assert (reply.status, reply.error["code"]) == (422, "cache_refused")
    assert stands(mesh)


@pytest.mark.parametrize("seconds", [-600, 600])
def test_a_sender_whose_clock_is_off_is_told_so(mesh: Mesh, seconds: int) -> None:
    clock = FakeClock(wall=SystemClock().wall() + seconds)
    reply = put(mesh, sealed(mesh, b"data"), signed(mesh, Signer(mesh.keys.signature, node=FIRST, clock=clock)))
    assert reply.status == 401
    assert reply.error["message"].startswith("skew:")
    assert stands(mesh)


def test_what_was_sent_before_is_refused(mesh: Mesh) -> None:
    session = mesh.session_key("replayed")
    headers, stream = signed(mesh), sealed(mesh, b"data", session=session, turn=4)
    assert put(mesh, stream, headers).status == 200
    again = put(mesh, stream, headers)
    assert (again.status, again.error["message"].split(":")[0]) == (401, "nonce replayed")
    # Under a new head, which only a member can make, the turn says it.
    for turn in (3, 4):
        late = put(mesh, sealed(mesh, b"late", session=session, turn=turn), signed(mesh))
        assert late.status == 422
        assert "not newer" in late.error["message"]
    newest, file = mesh.second.replicas()[session]
    assert (newest, file.read_bytes()) == (4, b"data")


@pytest.mark.parametrize(
    ("claims", "words"),
    [
        ({"fingerprint": "f" * 64}, "another fingerprint"),
        ({"group": "others"}, "group pair here"),
        ({"model": "other"}, "not shared on this member"),
    ],
)
def test_what_does_not_fit_is_refused_before_it_is_written(mesh: Mesh, claims: dict[str, str], words: str) -> None:
    reply = put(mesh, sealed(mesh, os.urandom(1000), **claims), signed(mesh))
    assert (reply.status, reply.error["code"]) == (409, "fingerprint_mismatch")
    assert words in reply.error["message"]
    assert stands(mesh)


@pytest.mark.parametrize("lie", ["noise", "cut"])
def test_a_lie_about_what_the_file_is_costs_a_cold_turn(mesh: Mesh, lie: str) -> None:
    """The header says that it fits; what came is no cache of the engine, or one that would kill it."""
    talk, real = Conversation(mesh, f"lied to, {lie}"), Conversation(mesh, f"real, {lie}")
    talk.say(prose(LONG, seed=50), on=FIRST)
    talk.arrived(mesh.second, turn=1)
    real.say(prose(LONG, seed=50), on=FIRST)
    whole = real.arrived(mesh.second, turn=1).read_bytes()
    data = os.urandom(len(whole)) if lie == "noise" else whole[:-1]
    assert put(mesh, sealed(mesh, data, session=talk.key, turn=2, tokens=3000), signed(mesh)).status == 200
    engine = mesh.second.engine()

    second = talk.say("And what came after that?", on=SECOND)
    assert second.warmth < COLD
    assert second.text == talk.afresh()
    (failure,) = mesh.second.events("kv import failed", session=talk.key)
    assert failure["turn"] == 2
    assert engine.is_running(), "the file never reached it"
    until(mesh.second.healthy, "it serves")

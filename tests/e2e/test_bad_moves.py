"""A cache on its way while a machine, an engine or a disk fails: a turn is cold then, and nothing worse."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from dialogue import COLD, LONG, WARM, Conversation
from hosts import Hosts
from mesh import FIRST, SECOND, Mesh, tiny, two_nodes
from nodes import Node, prose, until

pytestmark = pytest.mark.slow

SLOW_MBIT = 8
"""The cache of the first turn takes some 3 s, in several frames."""


def slow(path: Path, **kv_share: object) -> dict[str, Any]:
    return tiny(path, bandwidth_mbit=SLOW_MBIT, **kv_share)


@pytest.fixture
def slow_mesh(pair: Hosts, gguf: Path, llama_server: None, tmp_path: Path) -> Iterator[Mesh]:
    """Two nodes whose caches take seconds to send."""
    with two_nodes(pair, gguf, tmp_path, model=slow) as made:
        yield made


def arriving(node: Node) -> list[Path]:
    """What has begun to arrive there and is not whole."""
    return [file for file in node.store.iterdir() if file.suffix == ".tmp" and file.stat().st_size]


def test_who_receives_is_gone(slow_mesh: Mesh) -> None:
    mesh, talk = slow_mesh, Conversation(slow_mesh, "receiver gone")
    talk.say(prose(2 * LONG, seed=1), on=FIRST)
    until(lambda: arriving(mesh.second), "a part of it is there")
    mesh.second.process.kill()
    (told,) = mesh.first.heard("kv not sent", session=talk.key)
    assert told["bytes"] < told["of"]
    assert talk.say("And what came after that?", on=FIRST).warmth >= WARM


def test_who_sends_is_gone(slow_mesh: Mesh) -> None:
    mesh, talk = slow_mesh, Conversation(slow_mesh, "sender gone")
    talk.say(prose(2 * LONG, seed=2), on=FIRST)
    until(lambda: arriving(mesh.second), "a part of it is there")
    mesh.first.process.send_signal(signal.SIGKILL)
    mesh.first.process.wait()
    until(lambda: not mesh.second.members(), "it is missed")
    messages = [*talk.messages, {"role": "user", "content": "And what came after that?"}]
    reply = mesh.second.chat(messages, session=talk.session)
    assert reply.warmth < COLD
    assert reply.text
    assert talk.key not in mesh.second.replicas()


def test_a_session_that_comes_back_meanwhile_goes_on_warm(slow_mesh: Mesh) -> None:
    mesh, talk = slow_mesh, Conversation(slow_mesh, "back at once")
    talk.say(prose(2 * LONG, seed=3), on=FIRST)
    until(lambda: arriving(mesh.second), "a part of it is there")
    assert talk.say("And what came after that?", on=SECOND).warmth < COLD, "it was too early"
    assert talk.say("And then?", on=FIRST).warmth >= WARM, "the first turn's cache is still there"
    # Of all that was under way, in both directions, the newest stays.
    talk.arrived(mesh.second, turn=3)
    fourth = talk.say("And what was the last?", on=SECOND)
    assert fourth.warmth >= WARM
    assert mesh.second.events("kv imported", session=talk.key, turn=3)


def test_an_import_is_done_again_when_the_engine_has_lost_it(own_mesh: Mesh) -> None:
    """Nothing is skipped because it was done once: the new engine is asked, and holds nothing."""
    mesh, talk = own_mesh, Conversation(own_mesh, "lost")
    talk.say(prose(LONG, seed=4), on=FIRST)
    talk.arrived(mesh.second, turn=1)
    assert talk.say("And what came after that?", on=SECOND).warmth >= WARM
    before = mesh.second.engine()
    before.kill()

    def another() -> psutil.Process | None:
        (model,) = mesh.second.get("/v1/status").json["models"]
        (backend,) = model["backends"]
        return backend if backend["status"] == "healthy" and backend["pid"] != before.pid else None

    until(another, f"its engine runs again\n{mesh.second.log()}")
    until(lambda: "kv" in mesh.second.get("/v1/capacity").json["models"][0], "and its caches are shared")
    third = talk.say("And then?", on=SECOND)
    assert third.warmth >= WARM
    assert len(mesh.second.events("kv imported", session=talk.key, turn=1)) == 2


@pytest.mark.skipif(not hasattr(psutil.Process, "rlimit"), reason="another process's limits need Linux")
def test_a_receiver_without_room_refuses_and_says_so(own_mesh: Mesh) -> None:
    mesh, talk = own_mesh, Conversation(own_mesh, "no room")
    process = psutil.Process(mesh.second.process.pid)
    soft, hard = process.rlimit(psutil.RLIMIT_FSIZE)
    process.rlimit(psutil.RLIMIT_FSIZE, (1 << 20, hard))  # what it writes ends there as on a full disk
    talk.say(prose(LONG, seed=5), on=FIRST)
    (told,) = mesh.first.heard("kv not sent", session=talk.key)
    assert "507" in told["reason"]
    assert "disk is full" in told["reason"]
    assert mesh.second.heard("kv refused", session=talk.key)
    assert talk.key not in mesh.second.replicas()
    assert not arriving(mesh.second)

    second = talk.say("And what came after that?", on=SECOND)
    assert second.warmth < COLD
    assert second.text
    process.rlimit(psutil.RLIMIT_FSIZE, (soft, hard))
    talk.say("And then?", on=FIRST)
    talk.arrived(mesh.second, turn=3)
    assert talk.say("And what was the last?", on=SECOND).warmth >= WARM

"""Three nodes on three machines: from joining to being killed, and the change of their secret, under load."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import closing
from http.client import HTTPException
from pathlib import Path

import pytest
from crew import ALPHA, BETA, GAMMA, Crew, alias_state, open_stream, reached
from mesh import new_secret
from nodes import MODEL, SECRET, Node, until, user

from bench.scenes import trap

HELLO = [user("hello")]
CHANGED = "the mesh's secret is changed: every member knows the new one, which is used from now on"
PREVIOUS = "VIIWORK_MESH_SECRET_PREV"


def trio(crew: Crew, *options: str, **more: object) -> None:
    """The first without a model, so that all that enters there is forwarded."""
    crew.start(ALPHA, **more)  # type: ignore[arg-type]  # of the mesh block
    for name in (BETA, GAMMA):
        crew.start(name, crew.engine(name, *options), seeds=(ALPHA,), **more)  # type: ignore[arg-type]
    crew.met(BETA, GAMMA)


def test_they_join_and_forward(machines: Crew) -> None:
    trio(machines)
    alpha = machines[ALPHA]
    assert [one["id"] for one in alpha.get("/v1/models").json["data"]] == [MODEL]
    for name in (BETA, GAMMA):
        reply = alpha.chat(HELLO, host=name)
        assert reply.text
        assert (reply.headers["x-viiwork-node"], reply.headers["x-viiwork-origin"]) == (name, ALPHA)
    machines.stop(GAMMA)
    until(lambda: alpha.members() == {BETA}, "who says goodbye is missed at once", 3)
    assert alpha.chat(HELLO).headers["x-viiwork-node"] == BETA


def test_who_refuses_is_passed_over_and_the_next_one_is_asked(machines: Crew) -> None:
    machines.start(ALPHA)
    machines.start(BETA, machines.engine(BETA, "--answer-status", "429"), seeds=(ALPHA,))
    machines.start(GAMMA, machines.engine(GAMMA), seeds=(ALPHA,))
    machines.met(GAMMA)
    for _ in range(12):
        reply = machines[ALPHA].chat(HELLO)
        assert reply.text
        assert reply.headers["x-viiwork-node"] == GAMMA
    assert 0 < machines.asked(BETA) < 12, "it was asked, and then left alone for a while"


@pytest.mark.slow
def test_halves_that_part_write_aliases_and_agree_when_they_meet_again(machines: Crew) -> None:
    trio(machines)
    alpha, beta, gamma = (machines[name] for name in (ALPHA, BETA, GAMMA))
    with machines.load(ALPHA) as load:
        load.more(4, GAMMA)
        machines.network.split([machines.machine(GAMMA)])
        until(lambda: gamma.members() == set() and alpha.members() == {BETA}, "both halves know", 90)
        load.more(4, BETA)
        assert gamma.chat(HELLO).headers["x-viiwork-node"] == GAMMA, "the other half serves on too"
        for node, name in ((alpha, "here"), (gamma, "there")):
            alias(node, "set", name, MODEL)
            alias(node, "set", "both", MODEL, "--fallback", f"of-{node.name}", "--force")
        assert alias_state(alpha) != alias_state(gamma)
        machines.network.heal()
        machines.met()
        load.more(4, GAMMA)
    assert load.lost == []
    until(lambda: len({alias_state(one)[0] for one in (alpha, beta, gamma)}) == 1, "all have the same aliases", 60)
    assert alias_state(alpha)[1] == dict.fromkeys(("both", "here", "there"), MODEL)
    (fallback,) = json.loads(beta.get("/v1/aliases/both").body)["fallbacks"]
    assert fallback == "of-gamma", "written at the same version, so that the later author in the alphabet has it"


def alias(node: Node, *words: str) -> None:
    """`viiwork alias` on the node's machine."""
    environ = {"PATH": os.environ["PATH"], "HOME": str(node.folder), SECRET: node.secret}
    command = [Path(sys.executable).with_name("viiwork"), "alias", *words, "--timeout", "0"]
    with node.host.inside():
        done = subprocess.run(
            [*command, "--config", node.folder / "viiwork.yaml"],
            check=False,
            env=environ,
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_a_node_is_killed_under_load(machines: Crew) -> None:
    """With the polls of the default: once a second."""
    trio(machines, "--first-byte-seconds", "0.3", "--token-seconds", "0.02", capacity_poll="1s")
    alpha, beta = machines[ALPHA], machines[BETA]
    connection, stream = open_stream(alpha, BETA, 3000)
    with closing(connection), machines.load(ALPHA, 6) as load:
        load.more(4, BETA)
        until(lambda: beta.busy() >= 3, "some are under way there")
        beta.process.kill()
        at = time.monotonic()
        beta.process.wait()
        with trap(machines.machine(BETA), beta.port) as caught:
            with pytest.raises((OSError, HTTPException)):
                stream.read()  # it had begun, so that it is cut, and the client can see that
            load.more(20, GAMMA)
            until(lambda: time.monotonic() > at + 5, "some seconds have gone by")
    assert load.lost == [], "what was under way there went elsewhere"
    assert caught.polls, "somebody still asked there whether it was back"
    assert [one - at for one in caught.requests if one > at + 3] == []
    until(lambda: alpha.members() == {GAMMA}, "it is missed")


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_the_secret_is_changed_under_load_and_no_request_is_lost(machines: Crew) -> None:
    trio(machines)
    new = new_secret()
    both, alone = ({"secret": new, "environ": {PREVIOUS: machines.secret}}, {"secret": new})

    def again(name: str, secrets: dict[str, object]) -> None:
        machines.stop(name)
        models = [] if name == ALPHA else [machines.models[name]]
        machines.start(name, *models, seeds=tuple({ALPHA, BETA, GAMMA} - {name}), **secrets)  # type: ignore[arg-type]
        machines.met(BETA, GAMMA)

    with machines.load(ALPHA) as first:
        for name in (BETA, GAMMA):
            again(name, both)
        first.more(20)
    # Whoever asks a node cannot do so while that one is being restarted.
    again(ALPHA, both)
    with machines.load(ALPHA) as second:
        until(lambda: all(one.events(CHANGED) for one in machines.nodes.values()), "all use the new secret", 60)
        for name in (BETA, GAMMA):
            again(name, alone)
        second.more(20)
    assert (first.lost, second.lost) == ([], [])
    reached(machines[ALPHA], BETA)

"""What networks and machines do to a mesh: loss, standstill, pulled cables, half-dead nodes, neighbours."""

from __future__ import annotations

import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from crew import ALPHA, BETA, DELTA, GAMMA, GOSSIP, Crew, reached, rule
from hosts import Host
from mesh import new_secret
from nodes import Node, until, user

from bench.lan import PORT

pytestmark = pytest.mark.slow

HELLO = [user("hello")]
LONG = "n" * 79
"""Names are told apart by their 80th character."""


def trio(crew: Crew, *options: str, **mesh: object) -> None:
    """The first has no model of its own."""
    crew.start(ALPHA, **mesh)  # type: ignore[arg-type]  # of the mesh block
    for name in (BETA, GAMMA):
        crew.start(name, crew.engine(name, *options), seeds=(ALPHA,), **mesh)  # type: ignore[arg-type]
    crew.met(BETA, GAMMA)


def watched(node: Node, other: str, seconds: float) -> list[str]:
    """What a node thought of another one meanwhile, each change once: alive, suspect, gone."""
    seen: list[str] = []
    end = time.monotonic() + seconds

    def look() -> bool:
        members = {one["node"]: one for one in node.get("/v1/status").json["members"]}
        now = "gone" if other not in members else "suspect" if members[other]["suspect"] else "alive"
        if seen[-1:] != [now]:
            seen.append(now)
        return time.monotonic() > end

    until(look, f"{seconds} s have gone by", seconds + 30)
    return seen


@pytest.mark.slow
def test_packets_that_get_lost_on_one_way_cost_nobody_his_place_and_no_request_its_answer(machines: Crew) -> None:
    """A quarter of all that comes in at one node."""
    trio(machines)
    alpha, lossy = machines[ALPHA], "numgen random mod 100 < 25 drop"
    with rule(machines.machine(BETA), lossy), machines.load(ALPHA) as load:
        seen = watched(alpha, BETA, 8)
        load.more(50)
    assert "gone" not in seen, seen
    assert load.lost == []
    machines.met(BETA)
    assert watched(alpha, BETA, 1)[-1] == "alive"


@pytest.mark.slow
def test_a_node_that_stands_still_for_ten_seconds_is_missed_once_and_comes_back(machines: Crew) -> None:
    trio(machines)
    alpha, beta = machines[ALPHA], machines[BETA]
    with machines.load(ALPHA) as load:
        beta.process.send_signal(signal.SIGSTOP)
        try:
            seen = watched(alpha, BETA, 10)
            load.more(20, GAMMA)
        finally:
            beta.process.send_signal(signal.SIGCONT)
        load.more(20, BETA)
    assert load.lost == [], "what was under way there was answered late"
    assert seen[:2] == ["alive", "suspect"], seen
    assert seen.count("gone") <= 1, seen
    machines.met()
    assert watched(alpha, BETA, 3) == ["alive"], "and it stays"


@pytest.mark.slow
def test_what_is_under_way_at_a_machine_that_vanishes_goes_elsewhere(machines: Crew) -> None:
    """Nothing closes its connections. A request may wait there for half a minute and more, but not for the dead."""
    trio(machines, "--first-byte-seconds", "1")
    alpha, beta = machines[ALPHA], machines[BETA]
    with ThreadPoolExecutor(6) as threads:
        asked = [threads.submit(alpha.chat, HELLO, stream=number % 2 == 0) for number in range(6)]
        until(lambda: beta.busy() >= 2, "some are under way there")
        machines.network.unplug(machines.machine(BETA))
        until(lambda: all(one.done() for one in asked), "all have their answers", 25)
    answers = [one.result() for one in asked]
    assert {(one.status, one.headers["x-viiwork-node"]) for one in answers} == {(200, GAMMA)}
    assert alpha.members() == {GAMMA}


@pytest.mark.slow
def test_who_loses_all_others_at_once_says_that_it_may_be_its_own_cable_and_serves_on(machines: Crew) -> None:
    trio(machines)
    beta, cable = machines[BETA], machines.machine(BETA)
    machines.network.unplug(cable)
    (line,) = beta.heard("all other nodes are out of reach at once")
    assert line["nodes"] == [ALPHA, GAMMA]
    assert "this machine's own network may be down" in line["reason"]
    assert [beta.chat(HELLO).headers["x-viiwork-node"] for _ in range(3)] == [BETA] * 3
    assert machines[ALPHA].chat(HELLO).headers["x-viiwork-node"] == GAMMA
    machines.network.plug(cable)
    beta.heard("other nodes answer again")
    machines.met(BETA, GAMMA)


def test_a_node_whose_api_is_dead_gets_nothing_however_alive_its_gossip_is(machines: Crew) -> None:
    trio(machines, routing={"queue_timeout": "1s"})
    alpha, beta = machines[ALPHA], machines[BETA]
    with rule(machines.machine(BETA), f"tcp dport {beta.port} drop"):
        alpha.heard("no capacity report", node=BETA)
        began = time.monotonic()
        with machines.load(ALPHA, 1) as load:
            load.more(30)
        assert (set(load.by), load.lost) == ({GAMMA}, []), "and nothing waited for it to answer"
        assert time.monotonic() - began < 15
        assert alpha.members() == {BETA, GAMMA}, "gossip has it alive"
        pinned = alpha.chat(HELLO, host=BETA)
        assert pinned.status in (429, 503)
    reached(alpha, BETA)


@pytest.mark.slow
def test_two_meshes_on_one_network_stay_apart(machines: Crew) -> None:
    """Each is told of all by mDNS, and by its seeds."""
    theirs = new_secret()
    for name, other, secret in ((ALPHA, GAMMA, ""), (BETA, DELTA, theirs), (GAMMA, BETA, ""), (DELTA, ALPHA, theirs)):
        models = [machines.engine(name)] if name in (GAMMA, DELTA) else []
        machines.start(name, *models, seeds=(other,), secret=secret, network="lan")
    pairs = {ALPHA: GAMMA, GAMMA: ALPHA, BETA: DELTA, DELTA: BETA}
    for name, other in pairs.items():
        until(lambda name=name, other=other: machines[name].members() == {other}, f"{name} knows {other}", 60)  # type: ignore[misc]  # mypy cannot type a lambda's default
    reached(machines[ALPHA], GAMMA)
    reached(machines[BETA], DELTA)
    assert "another secret" in machines[BETA].heard("could not join")[0]["reason"]
    for name, other in pairs.items():
        assert machines[name].members() == {other}
    assert machines[ALPHA].chat(HELLO, host=DELTA).status == 404


def test_nodes_without_ipv4_are_one_mesh(machines: Crew) -> None:
    for name in (ALPHA, BETA):
        machines.machine(name).run("ip", "-4", "address", "flush", "dev", PORT)
    # The test speaks to each over its own loopback.
    alpha, beta = (Host("127.0.0.1", machines.machine(name).namespace) for name in (ALPHA, BETA))
    machines.start(ALPHA, host=alpha, advertise="fd00:77::1")
    seeds = [f"[fd00:77::1]:{GOSSIP}"]
    machines.start(BETA, machines.engine(BETA), host=beta, advertise="fd00:77::2", seeds=seeds)
    machines.met(BETA)
    assert machines[ALPHA].get("/v1/status").json["members"][0]["addr"] == "fd00:77::2"


def test_names_of_80_characters_are_told_apart_by_the_last(machines: Crew) -> None:
    machines.start(ALPHA, called=f"{LONG}1")
    machines.start(BETA, machines.engine(BETA), seeds=(ALPHA,), called=f"{LONG}2")
    machines.start(GAMMA, machines.engine(GAMMA), seeds=(ALPHA,), called=f"{LONG}3")
    machines.met(BETA, GAMMA)


def test_an_address_that_is_told_twice_or_is_its_own_is_joined_once(machines: Crew) -> None:
    machines.start(ALPHA)
    again = [machines.seed(ALPHA)] * 2
    beta = machines.start(BETA, machines.engine(BETA), seeds=[*again, machines.seed(BETA)])
    machines.met(BETA)
    assert len(beta.events("joined")) == 1
    assert beta.events("could not join") == []


@pytest.mark.slow
def test_two_machines_of_one_address_harm_nobody_else(machines: Crew) -> None:
    """The fourth takes the second one's address, and its node begins at it too."""
    trio(machines)
    alpha, taken, delta = machines[ALPHA], machines.machine(BETA).address, machines.machine(DELTA)
    machines.machine(DELTA).run("ip", "address", "add", f"{taken}/24", "dev", PORT)
    with machines.load(ALPHA) as load:
        inside = Host("127.0.0.1", delta.namespace)
        machines.start(DELTA, machines.engine(DELTA), seeds=(ALPHA,), host=inside, advertise=taken)
        load.more(100)
        assert watched(alpha, GAMMA, 2) == ["alive"]
        load.more(50, GAMMA)
    assert load.lost == []
    assert set(load.by) <= {BETA, GAMMA, DELTA}

"""The caches that move, as the operator sees them: listed, counted, forgotten everywhere, also by who was away."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from http_node import SECRET, Node, ask, chat, model, started, until
from prometheus_client.parser import text_string_to_metric_families

from viiwork_core.security.secret import MeshSecret, SessionKeys

HOSTS = {"alpha": "127.0.0.51", "beta": "127.0.0.52"}
PATH = "/v1/kv"
OPEN = {"VIIWORK_MESH_SECRET": ""}
KEYS = SessionKeys(MeshSecret.from_bytes(bytes(range(32))), mesh="default")


def places() -> dict[str, tuple[str, int]]:
    """Where each node's gossip is."""
    found = {}
    for name, host in HOSTS.items():
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.bind((host, 0))
            found[name] = (host, probe.getsockname()[1])
    return found


def configuration(name: str, where: dict[str, tuple[str, int]], *, open_: bool = False, **kv: Any) -> dict[str, Any]:
    host, port = where[name]
    return {
        "mesh": {
            "network": "seeds",
            "advertise": host,
            "bind_port": port,
            "seeds": [f"{other}:{at}" for other, at in where.values() if other != host],
            "capacity_poll": "100ms",
            "rejoin_interval": "1s",
            "open": open_,
        },
        "models": [model("m", "scripted-shared", kv_share={"group": "g", "min_tokens": 1, **kv})],
    }


def served(node: Node, session: str, host: str) -> None:
    """A turn of the session there, whose cache is saved and sent."""

    def done() -> bool:
        answer = asyncio.run(
            ask(node, chat("m"), path=f"/v1/chat/completions?host={host}", headers=[("X-Session-Id", session)])
        )
        return answer.status == 200

    until(done, f"{host} serves a turn")


def moved(one: Node, other: Node, session: str) -> str:
    """A session whose replica lies at `other`. Its key."""

    def arrived() -> str | None:
        served(one, session, one.name)
        # A turn that comes too soon overtakes the save of the one before.
        until(lambda: one.idle("m"), "the turn is saved")
        return next((held["session"] for held in other.get(PATH)["sessions"] if held["where"] == "replica"), None)

    one.engine("m").open("save")
    return until(arrived, f"{other.name} gets a replica\n{one.log()}\n{other.log()}")


def command(node: Node, *words: str, columns: int = 200) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "VIIWORK_MESH_SECRET": SECRET, "COLUMNS": str(columns)}
    return subprocess.run(
        [Path(sys.executable).with_name("viiwork"), "kv", *words, "--config", node.folder / "viiwork.yaml"],
        env=environ,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Node, Node]]:
    folder, where = tmp_path_factory.mktemp("kv"), places()
    with ExitStack() as stack:
        one, other = (stack.enter_context(started(name, folder / name, configuration(name, where))) for name in HOSTS)
        until(lambda: one.get("/v1/status")["members"] and other.get("/v1/status")["members"], "they know each other")
        yield one, other


def replicas(node: Node) -> list[str]:
    return [held["session"] for held in node.get(PATH)["sessions"] if held["where"] == "replica"]


def test_an_operator_lists_counts_and_forgets(pair: tuple[Node, Node]) -> None:
    one, other = pair
    key = moved(one, other, "mine")
    assert key == KEYS.session_key("mine")
    listed = json.loads(command(one, "ls", "--json").stdout)
    assert {(held["session"], held["where"]) for held in listed["sessions"]} == {(key, "engine")}
    shown = command(other, "ls")
    assert shown.returncode == 0, shown.stderr
    assert key in shown.stdout
    assert "replicas: 0.0 of 16384.0 MiB" in shown.stdout

    (told,) = json.loads(command(one, "stats", "--json").stdout)["models"]
    assert (told["state"], told["group"]) == ("on", "g")
    assert told["sent"] >= 1
    assert told["sent_bytes"] > 0
    assert one.model("m")["kv_share"]["sent"] >= 1
    (link,) = one.get("/v1/status")["kv_share"]["links"]
    assert (link["node"], link["sent"] >= 1, link["failed"], link["under_way"]) == (other.name, True, 0, 0)
    assert other.model("m")["kv_share"]["received"] >= 1
    narrow = command(one, "stats", columns=80).stdout
    assert "MODEL  STATE  SENT  FAILED  DROPPED  SENT MIB  OF FILES  SEND S" in narrow
    assert "MODEL  RECEIVED  REFUSED  IMPORTED  USELESS  IMPORT FAILED  IMPORT S" in narrow
    assert ".." not in narrow, "nothing is cut"
    until(lambda: shown_counts(one) == told_counts(one), "both say the same, once nothing is under way")

    forgotten = command(one, "forget", "mine")
    assert forgotten.returncode == 0, forgotten.stderr + one.log()
    assert "2 of 2 members have done it" in forgotten.stdout
    assert replicas(other) == []
    assert [held for node in pair for held in node.get(PATH)["sessions"] if held["session"] == key] == []
    assert not list((one.folder / "state" / "kv" / "engines").rglob(f"{key}*"))
    assert not list((other.folder / "state" / "kv" / "replicas").iterdir())
    heads = [
        head for node in pair for one_model in node.get("/v1/capacity")["models"] for head in one_model.get("heads", ())
    ]
    assert key not in {head["session"] for head in heads}
    until(lambda: {node.get(PATH)["forgotten"] for node in pair} == {1}, "both remember it")

    again = moved(one, other, "mine")
    assert again == key, "a session may go on"
    assert json.loads(command(other, "forget", key, "--json").stdout)["sessions"] == sorted(
        {key, KEYS.session_key(key)}
    )
    assert replicas(other) == []


def test_forgetting_a_session_that_nobody_has_says_so_and_is_noted(pair: tuple[Node, Node]) -> None:
    one, other = pair
    key, before = KEYS.session_key("nobody's"), one.get(PATH)["forgotten"]
    forgotten = command(one, "forget", "nobody's")
    assert forgotten.returncode == 0, forgotten.stderr + one.log()
    assert forgotten.stdout.splitlines() == [
        "nothing was found of it: no cache on alpha, and no replica at the members that answered",
        f"noted as forgotten, for members that are away: {key}",
        "2 of 2 members have done it",
    ]
    until(lambda: [node.get(PATH)["forgotten"] for node in (one, other)] == [before + 1] * 2, "both have noted it")


def test_what_the_node_alone_held_counts_as_found(pair: tuple[Node, Node]) -> None:
    one, _ = pair
    key = KEYS.session_key("only here")

    def held() -> bool:
        return key in {session["session"] for session in one.get(PATH)["sessions"]}

    one.engine("m").open("save")
    served(one, "only here", one.name)
    until(held, "its engine has it")
    told = json.loads(command(one, "forget", "only here", "--json").stdout)
    assert (told["sessions"], told["held"]) == ([key], 1)
    assert not held()


COUNTED = {
    "SENT": "sent",
    "FAILED": "failed",
    "DROPPED": "dropped",
    "RECEIVED": "received",
    "REFUSED": "refused",
    "IMPORTED": "imported",
    "USELESS": "useless",
    "IMPORT FAILED": "import_failed",
}
"""Columns of `viiwork kv stats`, and the names of `--json`."""


def shown_counts(node: Node) -> dict[str, str]:
    """By the table's columns, of the node's one model."""
    out, taken, *_ = (table.splitlines() for table in command(node, "stats", columns=80).stdout.split("\n\n"))
    rows = [zip(re.split("  +", head), row.split(), strict=True) for head, row in (out, taken)]
    return {column: value for row in rows for column, value in row if column in COUNTED}


def told_counts(node: Node) -> dict[str, str]:
    (told,) = json.loads(command(node, "stats", "--json").stdout)["models"]
    return {column: str(told[name]) for column, name in COUNTED.items()}


def test_what_caches_move_is_counted_for_prometheus(pair: tuple[Node, Node]) -> None:
    one, other = pair
    for node in pair:
        node.engine("m").open("save")
    for host in ("alpha", "alpha", "beta"):
        served(one, "counted", host)

    def turns(node: Node) -> dict[tuple[str, ...], float]:
        return series(node, "viiwork_session_turns_total")

    # The scripted engine reuses 2 of 5 tokens.
    until(lambda: turns(one).get(("m", "partly", "none"), 0) + turns(one).get(("m", "partly", "backend"), 0), "stays")
    until(lambda: turns(other).get(("m", "partly", "host")), "moves")
    results = {result: number for (_, result), number in series(one, "viiwork_replicas_total").items()}
    assert results.keys() >= {"sent", "failed", "dropped", "received", "imported", "useless"}
    assert series(one, "viiwork_replica_seconds_total").keys() == {("m", step) for step in ("save", "send", "import")}


def series(node: Node, name: str) -> dict[tuple[str, ...], float]:
    """The values of its labels, in the order of their names."""
    text = asyncio.run(ask(node, b"", path="/metrics", method="GET")).body.decode()
    return {
        tuple(value for _, value in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name
    }


@pytest.mark.parametrize(
    ("body", "status"),
    [(b'{"session":"x"}', 401), (b'{"turns":{"%s":1}}' % (b"1" * 32), 401), (b"{}", 401)],
)
def test_who_does_not_know_the_secret_forgets_nothing(pair: tuple[Node, Node], body: bytes, status: int) -> None:
    before = pair[1].get(PATH)["forgotten"]
    answer = asyncio.run(ask(pair[1], body, path=f"{PATH}/forget"))
    assert answer.status == status
    assert pair[1].get(PATH)["forgotten"] == before


def test_who_was_away_forgets_when_it_is_back(tmp_path: Path) -> None:
    where = places()
    with started("alpha", tmp_path / "alpha", configuration("alpha", where)) as one:
        with started("beta", tmp_path / "beta", configuration("beta", where)) as other:
            key = moved(one, other, "away")
        folder = tmp_path / "beta" / "state" / "kv" / "replicas"
        assert len(list(folder.iterdir())) == 2, "it lies on the disk of a node that is down"
        until(lambda: not one.get("/v1/status")["members"], "beta is gone")
        assert "1 of 1 members" in command(one, "forget", "away").stdout
        with started("beta", tmp_path / "beta", configuration("beta", where)) as other:
            other.heard("session forgotten", session=key)
            until(lambda: not list(folder.iterdir()), "the replica is gone")
            assert replicas(other) == []
            assert other.get(PATH)["forgotten"] == 1


def test_in_an_open_mesh_caches_move_only_where_that_is_allowed(tmp_path: Path) -> None:
    where = places()
    with ExitStack() as stack:
        nodes = {
            name: stack.enter_context(
                started(
                    name,
                    tmp_path / name,
                    configuration(name, where, open_=True, allow_open=True),
                    environ=OPEN,
                )
            )
            for name in HOSTS
        }
        one, other = nodes.values()
        until(lambda: one.get("/v1/status")["members"] and other.get("/v1/status")["members"], "they know each other")
        key = moved(one, other, "open")
        assert key == SessionKeys(None, mesh="default").session_key("open")
        command(one, "forget", "open")
        until(lambda: replicas(other) == [], "the other hears of it with the next report")
        other.heard("session forgotten", session=key)


def test_without_it_an_open_mesh_shares_nothing_and_says_so(tmp_path: Path) -> None:
    where = places()
    alone = configuration("alpha", where, open_=True)
    with started("alpha", tmp_path / "alpha", alone, environ=OPEN) as node:
        mark = node.model("m")["kv_share"]
        assert mark["state"] == "off"
        assert "allow_open" in mark["reason"]
        assert "allow_open" in node.heard("kv_share is off", model="m")["reason"]

"""API keys of a secured mesh of two: made on one node they count on both, and so do revocations and what is used."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from http_node import SECRET, Node, ask, chat, model, until
from key_holders import asked, command, engine, listed, new, outcome, read, revoke, said, shown, status
from meshes import Mesh

from viiwork_core.errors import ViiworkError

pytestmark = pytest.mark.slow

TOKENS_OF_ONE = 6
HOSTS = {"alpha": "127.0.0.51", "beta": "127.0.0.52"}
MODELS = {"alpha": ("m",), "beta": ("m", "far")}


class Pair(Mesh):
    """Two nodes, of which one may be away."""

    def __init__(self, folder: Path, **mesh: Any) -> None:
        super().__init__(folder, HOSTS)
        self.more = mesh

    def config(self, name: str) -> dict[str, Any]:
        models = [model(one) for one in MODELS[name]]
        return {"mesh": self.section(name, **self.more), "health": {"interval": "0.3s"}, "models": models}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    nodes = Pair(tmp_path_factory.mktemp("pair"))
    try:
        for name in HOSTS:
            nodes.start(name)
        for node, _ in nodes.running.values():
            until(lambda node=node: len(node.get("/v1/status")["members"]) == 1, f"{node.name} knows the other")  # type: ignore[misc]  # mypy cannot type a lambda's default
        yield nodes
    finally:
        nodes.stop()


@pytest.fixture(autouse=True)
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """The operator has the mesh's secret."""
    monkeypatch.setenv("VIIWORK_MESH_SECRET", SECRET)


@pytest.fixture
def mesh(pair: Pair) -> Pair:
    """The two nodes without keys."""
    for name in listed(pair["alpha"]):
        revoke(pair["alpha"], name, opens=True)
    until(lambda: listed(pair["beta"]) == {}, "beta has no keys either")
    return pair


def admits(node: Node, token: str | None) -> bool:
    return asked(node, token).status == 200


def test_a_key_made_on_one_node_counts_on_the_other_until_it_is_revoked_there(mesh: Pair) -> None:
    alpha, beta = mesh["alpha"], mesh["beta"]
    made = command(alpha, "new", "alice", "--weight", "2", "--wait", "--timeout", "20s")
    assert (made.returncode, made.stderr) == (0, "2 of 2 members have it\n")
    token = made.stdout.rstrip("\n")
    assert [admits(node, token) for node in (alpha, beta)] == [True, True]
    assert [outcome(asked(node, None)) for node in (alpha, beta)] == [(401, "invalid_api_key")] * 2
    keeper = new(beta, "keeper")
    assert said(beta, "revoke", "alice", "--wait", "--timeout", "20s") == ("alice is revoked\n2 of 2 members have it\n")
    assert [admits(node, token) for node in (alpha, beta)] == [False, False]
    assert [admits(node, keeper) for node in (alpha, beta)] == [True, True]


def test_a_forward_needs_no_key_and_carries_its_name(mesh: Pair) -> None:
    alpha, beta = mesh["alpha"], mesh["beta"]
    token = new(alpha, "bob")
    until(lambda: "bob" in listed(beta), "beta knows the key")
    answer = asked(alpha, token, "far")
    assert (answer.status, answer.headers["x-viiwork-node"]) == (200, "beta")
    text = read(beta, "/metrics", token).body.decode()
    assert 'viiwork_key_tokens_total{key="bob",kind="prompt"} 5.0' in text, "counted where they were made"
    assert 'viiwork_key_requests_total{key="bob"}' not in text, "and the request where it came"
    names = {name.lower() for one in engine(beta, "far", token).seen() for name, _ in one["headers"]}
    assert names.isdisjoint({"authorization", "x-viiwork-key"})


def test_an_allowance_counts_what_was_used_on_both(mesh: Pair) -> None:
    alpha, beta = mesh["alpha"], mesh["beta"]
    token = new(alpha, "carol", daily_tokens=2 * TOKENS_OF_ONE)
    until(lambda: "carol" in listed(beta), "beta knows the key")
    assert asked(alpha, token, "far").status == 200
    for node in (alpha, beta):
        until(lambda node=node: listed(node)["carol"]["used_today"] == TOKENS_OF_ONE, f"{node.name} has heard")  # type: ignore[misc]  # mypy cannot type a lambda's default
    assert asked(beta, token).status == 200
    until(lambda: listed(alpha)["carol"]["used_today"] == 2 * TOKENS_OF_ONE, "alpha has heard of both")
    assert [outcome(asked(node, token)) for node in (alpha, beta)] == [(429, "insufficient_quota")] * 2


def test_a_client_cannot_say_whose_key_it_has(mesh: Pair) -> None:
    alpha = mesh["alpha"]
    token = new(alpha, "dave")
    forged = [("X-Viiwork-Key", "mallory"), shown(token)]
    assert asyncio.run(ask(alpha, chat("far"), headers=forged)).status == 200
    hop = [("X-Viiwork-Forwarded", "beta"), ("X-Viiwork-Node", "beta")]
    assert outcome(asyncio.run(ask(alpha, chat("m"), headers=hop))) == (401, "unproven")
    for node in mesh["alpha"], mesh["beta"]:
        assert "mallory" not in read(node, "/metrics", token).body.decode()


def test_keys_are_the_operators_alone(mesh: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    alpha = mesh["alpha"]
    token = new(alpha, "erin")
    for path in ("/v1/keys", "/v1/keys?table=1", "/v1/keys/erin"):
        assert read(alpha, path, token).status == 401, "a client's key is no operator's"
    monkeypatch.delenv("VIIWORK_MESH_SECRET")
    with pytest.raises(ViiworkError):
        new(alpha, "frank")
    done = command(alpha, "ls", VIIWORK_MESH_SECRET="")
    assert done.returncode == 1
    assert "remedy: set VIIWORK_MESH_SECRET" in done.stderr


def test_a_node_that_was_away_gets_the_revocation_and_a_new_one_the_keys(tmp_path: Path) -> None:
    nodes = Pair(tmp_path)
    try:
        alpha, beta = nodes.start("alpha"), nodes.start("beta")
        old, kept = new(alpha, "old"), new(alpha, "kept")
        until(lambda: set(listed(beta)) == {"old", "kept"}, "beta knows both")
        nodes.stop("beta")
        revoke(alpha, "old")
        beta = nodes.start("beta", healthy=False)
        assert not admits(beta, None), "what it knew before counts from the start"
        until(lambda: set(listed(beta)) == {"kept"}, "the revocation comes to beta")
        assert [admits(node, old) for node in (alpha, beta)] == [False, False]
        nodes.stop("beta")
        (tmp_path / "beta" / "state" / "keys.json").unlink()
        beta = nodes.start("beta", healthy=False)
        until(lambda: not admits(beta, None), "a node that knows nothing is closed by its first member's report")
        until(lambda: admits(beta, kept), "and has the keys")
        assert not admits(beta, old)
        assert status(beta, "m", kept)["queued"] == 0
    finally:
        nodes.stop()


def test_an_open_mesh_takes_no_keys(tmp_path: Path) -> None:
    nodes = Pair(tmp_path, open=True)
    try:
        alpha = nodes.start("alpha", VIIWORK_MESH_SECRET="")
        with pytest.raises(ViiworkError, match="cannot be kept in an open mesh"):
            new(alpha, "alice")
        assert alpha.heard("the API is open to this machine")["remedy"] == "keys need a mesh with a secret"
    finally:
        nodes.stop()
    file = tmp_path / "alpha" / "viiwork.yaml"
    config = json.loads(file.read_text())
    config["api"]["keys"] = [{"name": "a", "hash": "sha256:" + "0" * 64}]
    file.write_text(json.dumps(config))
    check = [str(Path(sys.executable).with_name("viiwork")), "config", "check", str(file)]
    done = subprocess.run(check, capture_output=True, text=True, check=False, env={**os.environ, "VIIWORK_PLUGINS": ""})
    assert done.returncode == 1
    assert "api.keys (line 1): cannot be kept in an open mesh" in done.stderr + done.stdout

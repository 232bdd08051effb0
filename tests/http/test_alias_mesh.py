"""Aliases of several nodes: they spread, survive who was away, and end the same wherever they were written."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from commands import command
from http_node import SECRET, Answer, Node, ask, chat, model, started, until
from meshes import Mesh

from viiwork_core.clock import SystemClock
from viiwork_core.security.secret import MeshSecret
from viiwork_core.security.signing import Signer

pytestmark = pytest.mark.slow

HOSTS = {"alpha": "127.0.0.21", "beta": "127.0.0.22", "gamma": "127.0.0.23"}
PATH = "/v1/aliases"


class Three(Mesh):
    """The nodes that run, and what models each has."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, HOSTS)
        self.models = {"alpha": ("big",), "beta": ("big", "small"), "gamma": ()}

    def config(self, name: str) -> dict[str, Any]:
        models = [model(one) for one in self.models[name]]
        return {"mesh": self.section(name), "health": {"interval": "0.3s"}, "models": models}

    def met(self) -> None:
        for node, _ in self.running.values():
            others = self.running.keys() - {node.name}
            until(lambda node=node, others=others: members(node) == others, f"{node.name} knows the others")  # type: ignore[misc]  # mypy cannot type a lambda's default

    def agree(self) -> str:
        """Wait until all have the same table; its digest."""
        until(lambda: len({node.get(PATH)["digest"] for node, _ in self.running.values()}) == 1, "they agree")
        return str(next(iter(self.running.values()))[0].get(PATH)["digest"])


def members(node: Node) -> set[str]:
    return {member["node"] for member in node.get("/v1/status")["members"]}


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Three]:
    nodes = Three(tmp_path_factory.mktemp("three"))
    try:
        yield nodes
    finally:
        nodes.stop()


@pytest.fixture
def mesh(three: Three) -> Three:
    """All three run and know each other."""
    for name in HOSTS.keys() - three.running.keys():
        three.start(name)
    three.met()
    return three


def alias(node: Node, *args: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """`viiwork alias` on the node's machine, with the secret unless `environ` says otherwise."""
    return command(node, "alias", *args, **{"VIIWORK_MESH_SECRET": SECRET, **environ})


def said(node: Node, *args: str) -> str:
    done = alias(node, *args)
    assert done.returncode == 0, done.stderr
    return done.stdout


def info(node: Node, name: str) -> Any:
    return node.get(f"{PATH}/{name}")


def asked(node: Node, name: str) -> Answer:
    return asyncio.run(ask(node, chat(name)))


def test_a_set_on_one_node_is_known_on_all(mesh: Three) -> None:
    assert said(mesh["alpha"], "set", "coder", "small", "--wait", "--timeout", "20s") == (
        "coder -> small\n3 of 3 members have it\n"
    )
    for node, _ in mesh.running.values():
        answer = asked(node, "coder")
        assert (answer.status, answer.headers["x-viiwork-node"]) == (200, "beta")
        assert (answer.headers["x-viiwork-model"], answer.headers["x-viiwork-alias"]) == ("small", "coder")
        listed = {one["id"]: one for one in node.get("/v1/models")["data"]}["coder"]
        assert (listed["owned_by"], listed["target"]) == ("alias", "small")
        assert (
            listed["context_length"]
            == {one["id"]: one for one in node.get("/v1/models")["data"]}["small"]["context_length"]
        )
    assert "x-viiwork-origin" in asked(mesh["gamma"], "coder").headers
    assert said(mesh["gamma"], "rm", "coder", "--wait", "--timeout", "20s") == (
        "coder -> nothing\n3 of 3 members have it\n"
    )
    assert asked(mesh["alpha"], "coder").status == 404


def test_a_write_needs_the_secret_also_from_this_machine(mesh: Three) -> None:
    refused = alias(mesh["alpha"], "set", "a", "big", VIIWORK_MESH_SECRET="")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr.startswith("missing: X-Viiwork-Ts")
    assert "remedy: set VIIWORK_MESH_SECRET to the secret of the mesh" in refused.stderr
    there = f"http://{mesh['beta'].host}:{mesh['beta'].port}"
    assert alias(mesh["alpha"], "set", "a", "big", "--node", there, VIIWORK_MESH_SECRET="").returncode == 1
    other = {"VIIWORK_MESH_SECRET": "", "OTHER": SECRET}
    done = alias(mesh["alpha"], "set", "a", "big", "--node", there, "--secret-env", "OTHER", "--timeout", "0", **other)
    assert done.returncode == 0, done.stderr
    assert info(mesh["beta"], "a")["updated_by"] == "beta"


def test_a_signature_is_for_one_path(mesh: Three) -> None:
    said(mesh["alpha"], "set", "b", "big", "--wait", "--timeout", "20s")
    key = MeshSecret.from_bytes(bytes(range(32))).signature
    signer = Signer(key, node="viiwork-cli@here", clock=SystemClock())
    signed = signer.sign("DELETE", f"{PATH}/other", [], b"")
    answer = asyncio.run(ask(mesh["alpha"], b"", path=f"{PATH}/b", method="DELETE", headers=signed))
    assert (answer.status, answer.error["code"]) == (401, "unproven")
    again = signer.sign("DELETE", f"{PATH}/b", [], b"")
    for expected in (200, 401):
        answer = asyncio.run(ask(mesh["alpha"], b"", path=f"{PATH}/b", method="DELETE", headers=again))
        assert answer.status == expected


def test_who_was_away_gets_the_whole_table(mesh: Three) -> None:
    said(mesh["alpha"], "set", "kept", "big", "--wait", "--timeout", "20s")
    said(mesh["alpha"], "set", "lost", "big", "--wait", "--timeout", "20s")
    mesh.stop("gamma")
    said(mesh["beta"], "set", "kept", "small", "--fallback", "big")
    said(mesh["beta"], "set", "new", "small")
    said(mesh["alpha"], "rm", "lost")
    (mesh.folder / "gamma" / "state" / "aliases.json").stat()
    mesh.start("gamma")
    mesh.met()
    mesh.agree()
    found = {one["name"]: one for one in mesh["gamma"].get(PATH)["aliases"]}
    assert found.keys() >= {"kept", "new"}
    assert "lost" not in found
    assert [one["target"] for one in info(mesh["gamma"], "kept")["history"]] == ["big"]
    for name in ("kept", "new"):
        until(lambda name=name: info(mesh["beta"], name)["members"]["have"] == 3, "beta knows that")  # type: ignore[misc]  # mypy cannot type a lambda's default


def test_two_writes_at_one_time_have_one_winner_and_the_other_is_kept(mesh: Three) -> None:
    """Two parts of a mesh that do not see each other: here, that do not run at the same time."""
    mesh.stop("beta", "gamma")
    said(mesh["alpha"], "set", "torn", "big", "--timeout", "0")
    mesh.stop("alpha")
    mesh.start("beta")
    said(mesh["beta"], "set", "torn", "small", "--timeout", "0")
    mesh.start("gamma")
    mesh.met()
    mesh.agree()
    mesh.start("alpha")
    mesh.met()
    mesh.agree()
    for node, _ in mesh.running.values():
        found = info(node, "torn")
        assert (found["target"], found["updated_by"], found["version"]) == ("small", "beta", 1)
        assert [(one["target"], one["by"], one["ver"]) for one in found["history"]] == [("big", "alpha", 1)]
    (event,) = [one for one in mesh["alpha"].get("/v1/activity")["events"] if "written twice" in one["message"]]
    assert event["message"] == ("torn was written twice at one time: small by beta is kept, big by alpha gives way")
    assert said(mesh["alpha"], "revert", "torn", "--wait", "--timeout", "20s").startswith("torn -> big\n")
    assert info(mesh["gamma"], "torn")["version"] == 2


def test_an_export_is_taken_in_by_another_mesh(mesh: Three, tmp_path: Path) -> None:
    said(mesh["alpha"], "set", "moved", "big", "--wait", "--timeout", "20s")
    exported = tmp_path / "aliases.json"
    exported.write_text(said(mesh["alpha"], "export"))
    with started("alone", tmp_path / "alone", {"models": [model("big")]}) as node:
        answer = alias(node, "import", str(exported), VIIWORK_MESH_SECRET="")
        assert "moved: set\n" in answer.stdout
        assert info(node, "moved")["updated_by"] == "alone"
        assert asked(node, "moved").headers["x-viiwork-model"] == "big"
        assert json.loads(exported.read_text())["v"] == 1


def test_a_name_that_becomes_a_model_is_the_model(mesh: Three) -> None:
    said(mesh["alpha"], "set", "future", "big", "--wait", "--timeout", "20s")
    mesh.stop("gamma")
    mesh.models["gamma"] = ("future",)
    mesh.start("gamma")
    mesh.met()
    until(lambda: info(mesh["alpha"], "future")["state"] == "shadowed", "the model is there")
    answer = asked(mesh["alpha"], "future")
    assert (answer.headers["x-viiwork-node"], answer.headers["x-viiwork-model"]) == ("gamma", "future")
    assert "x-viiwork-alias" not in answer.headers
    mesh.stop("gamma")
    until(lambda: info(mesh["alpha"], "future")["state"] == "ok", "it is gone again")
    assert asked(mesh["alpha"], "future").headers["x-viiwork-model"] == "big"


def test_an_open_mesh_has_them_too(tmp_path: Path) -> None:
    class Open(Mesh):
        def config(self, name: str) -> dict[str, Any]:
            mesh = self.section(name, open=True, secret_env="NO_SECRET")
            return {"mesh": mesh, "health": {"interval": "0.3s"}, "models": [model("big")] if name == "right" else []}

    nodes = Open(tmp_path, {"left": "127.0.0.26", "right": "127.0.0.27"})
    try:
        left, right = nodes.start("left"), nodes.start("right")
        until(lambda: members(left) and members(right), "they know each other")
        until(lambda: "big" in [one["id"] for one in left.get("/v1/models")["data"]], "and their models")
        done = alias(left, "set", "coder", "big", "--wait", "--timeout", "20s", VIIWORK_MESH_SECRET="")
        assert (done.returncode, done.stdout) == (0, "coder -> big\n2 of 2 members have it\n"), done.stderr
        for node in (left, right):
            answer = asked(node, "coder")
            assert (answer.status, answer.headers["x-viiwork-alias"]) == (200, "coder")
        foreign = asyncio.run(
            ask(left, b"", path=f"{PATH}/coder", method="DELETE", headers=[("Origin", "http://127.0.0.1")])
        )
        assert foreign.status == 403
    finally:
        nodes.stop()


def test_a_forward_by_an_alias_is_not_resolved_again(mesh: Three) -> None:
    """Its entry node has resolved it; whoever is sent one nevertheless does not serve such a model."""
    said(mesh["alpha"], "set", "twice", "big", "--wait", "--timeout", "20s")
    key = MeshSecret.from_bytes(bytes(range(32))).signature
    path, body = "/v1/chat/completions", chat("twice")
    headers = [("X-Viiwork-Forwarded", "gamma")]
    headers += Signer(key, node="gamma", clock=SystemClock()).sign("POST", path, headers, body)
    answer = asyncio.run(ask(mesh["alpha"], body, headers=headers))
    assert (answer.status, answer.error["code"]) == (503, "model_not_served")

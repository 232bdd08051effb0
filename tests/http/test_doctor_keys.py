"""viiwork doctor where nodes ask for API keys: it proves itself, and where it cannot that is no fault of theirs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from http_node import SECRET, Node, model, started, until
from key_holders import listed, new
from meshes import free_port
from test_doctor import Found, doctor, only
from test_mesh_views import configuration

pytestmark = pytest.mark.slow

HOSTS = {"alpha": "127.0.0.43", "beta": "127.0.0.44"}
SHARED = model("shared", "fake", kv_share={"group": "g", "min_tokens": 200})
ASKING = ("ports", "mesh", "models", "kv_share")


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Node, Node, str]]:
    """Two nodes that share the caches of one model, each with one of its own, and a key's token."""
    folder, ports = tmp_path_factory.mktemp("keyed"), {name: free_port(host) for name, host in HOSTS.items()}
    with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        patch.setenv("VIIWORK_MESH_SECRET", SECRET)
        made = []
        for name, host in HOSTS.items():
            seeds = [f"{HOSTS[other]}:{port}" for other, port in ports.items() if other != name]
            config = configuration(host, ports[name], seeds, SHARED, model(f"{name}-own", "fake"))
            made.append(stack.enter_context(started(name, folder / name, config)))
        alpha, beta = made
        for node in made:
            until(lambda node=node: len(_served(node)) == 4, "both see all", 60)  # type: ignore[misc]  # mypy cannot type a lambda's default
        token = new(alpha, "alice")
        until(lambda: "alice" in listed(beta), "beta has the key")
        yield alpha, beta, token


def _served(node: Node) -> list[str]:
    models = node.get("/v1/fleet/capacity")["models"]
    return [one["name"] for one in models for host in one["hosts"] if host.get("slots")]


def _all_is_asked(found: Found, here: str, there: str) -> None:
    assert found.of("ports", "problem") == found.of("mesh", "problem") == found.of("kv_share", "problem") == []
    found.one("ports", "ok", "the API answers at ")
    found.one("mesh", "ok", f"{there} reaches this node's API")
    for name in ("shared", f"{here}-own"):
        found.one("models", "ok", f"{name} on {here} answers, in")
        found.one("models", "ok", f"{name} on {here} through {there} answers, in")
        found.one("models", "warning", f"{name} on {here} through {there} answers a tool request without a call")
    found.one("models", "ok", f"{there}-own on {there} through {here} answers, in")
    assert found.of("models", "problem") == []


def test_with_the_secret_of_the_mesh_all_is_asked(pair: tuple[Node, Node, str]) -> None:
    found = doctor(pair[0].folder, *only(*ASKING))
    _all_is_asked(found, "alpha", "beta")
    found.one("kv_share", "ok", "a session moved to beta")


def test_with_an_api_key_as_well(pair: tuple[Node, Node, str]) -> None:
    alpha, _, token = pair
    found = doctor(alpha.folder, *only(*ASKING), environ={"VIIWORK_MESH_SECRET": "", "VIIWORK_API_KEY": token})
    _all_is_asked(found, "alpha", "beta")
    assert token not in found.text


def test_with_neither_that_is_a_warning_with_its_remedy(pair: tuple[Node, Node, str]) -> None:
    found = doctor(pair[0].folder, *only(*ASKING), environ={"VIIWORK_MESH_SECRET": ""})
    assert found.status == 1
    for topic in ASKING:
        refused = found.one(topic, "warning", "does not let this command in")
        assert "VIIWORK_API_KEY" in refused["remedy"]
    found.one("models", "ok", "shared on beta through alpha answers")


def test_the_secret_may_stand_beside_the_configuration(pair: tuple[Node, Node, str]) -> None:
    alpha = pair[0]
    file = alpha.folder / "viiwork.env"
    file.write_text(f"VIIWORK_MESH_SECRET={SECRET}\n")
    try:
        found = doctor(alpha.folder, *only("mesh", "ports"), without=("VIIWORK_MESH_SECRET",))
    finally:
        file.unlink()
    found.one("mesh", "ok", "the mesh is secured by VIIWORK_MESH_SECRET (id ")
    found.one("mesh", "ok", "beta reaches this node's API")


def test_another_machine_s_node(pair: tuple[Node, Node, str]) -> None:
    alpha, beta, token = pair
    at = ("--url", f"http://{beta.host}:{beta.port}", *only("node", "models"))
    for environ in ({}, {"VIIWORK_MESH_SECRET": "", "VIIWORK_API_KEY": token}):
        found = doctor(alpha.folder, *at, environ=environ)
        found.one("node", "ok", "beta answers at http://127.0.0.1:")
        found.one("models", "ok", "shared on beta answers, in")
    found = doctor(alpha.folder, *at, environ={"VIIWORK_MESH_SECRET": ""})
    assert found.status == 1
    assert "VIIWORK_API_KEY" in found.one("node", "warning", "does not let this command in")["remedy"]


def test_what_is_no_key_is_told_and_not_repeated(pair: tuple[Node, Node, str]) -> None:
    wrong = "vwk_with\nbreak"
    found = doctor(pair[0].folder, *only("node"), environ={"VIIWORK_API_KEY": wrong})
    assert found.status == 2
    found.one("node", "problem", "VIIWORK_API_KEY holds no API key")
    assert "break" not in found.text

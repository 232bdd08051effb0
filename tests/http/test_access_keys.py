"""API keys at the door of real nodes: clients, commands, members, and what stays open."""

from __future__ import annotations

import asyncio
import base64
import json
import stat
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from commands import viiwork
from http_node import CHAT, SECRET, Answer, Node, ask, chat, connected, model, started, until
from meshes import free_port, mesh_at

from viiwork_core.clock import SystemClock
from viiwork_core.security.join_code import decode
from viiwork_core.security.keys import digest_of, hash_text, new_token
from viiwork_core.security.secret import MeshSecret
from viiwork_core.security.signing import FORWARDED, Signer

TOKEN = new_token()
KEYS = {"api": {"port": 0, "keys": [{"name": "alice", "hash": hash_text(digest_of(TOKEN))}]}}
BEARER = ("Authorization", f"Bearer {TOKEN}")
Header = tuple[str, str]


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    config = {**KEYS, "health": {"interval": "0.3s"}, "models": [model("m")]}
    with started("keyed", tmp_path_factory.mktemp("keyed") / "node", config, healthy=False) as node:
        until(lambda: got(node, "/v1/status", BEARER).body.count(b'"healthy"'), "its backend is healthy")
        yield node


def got(node: Node, path: str, *headers: Header, method: str = "GET", body: bytes = b"") -> Answer:
    return asyncio.run(ask(node, body, path=path, method=method, headers=headers))


@pytest.mark.parametrize("shown", [[], [("Authorization", "Bearer wrong")], [("x-api-key", new_token())]])
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", CHAT),
        ("GET", CHAT),
        ("GET", "/v1/models"),
        ("HEAD", "/v1/status"),
        ("GET", "/metrics"),
        ("OPTIONS", "/"),
        ("GET", "/v1/activity/stream"),
        ("GET", "/v1/mesh/stream"),
        ("GET", "/v1/capacity"),
        ("GET", "/v1/keys"),
        ("GET", "/nothing"),
    ],
)
def test_no_key_and_a_wrong_one_are_401_everywhere(
    keyed: Node, method: str, path: str, shown: Sequence[Header]
) -> None:
    answer = got(keyed, path, *shown, method=method)
    assert answer.status == 401
    assert answer.headers["www-authenticate"] == 'Bearer realm="viiwork"'
    if method != "HEAD":
        assert (answer.error["code"], answer.error["type"]) == ("invalid_api_key", "invalid_request_error")


@pytest.mark.parametrize("shown", [BEARER, ("x-api-key", TOKEN)])
def test_with_a_key_a_client_is_served(keyed: Node, shown: Header) -> None:
    assert got(keyed, CHAT, shown, method="POST", body=chat("m")).status == 200
    assert got(keyed, "/v1/models", shown).status == 200
    assert got(keyed, "/metrics", shown).status == 200


def test_anthropic_s_client_can_name_what_was_refused_at_the_door(keyed: Node) -> None:
    answer = got(keyed, "/v1/messages", method="POST", body=chat("m"))
    assert answer.status == 401
    assert answer.headers["request-id"] == answer.headers["x-request-id"]


def test_a_body_that_is_refused_is_not_awaited(keyed: Node) -> None:
    async def scene() -> Answer:
        async with asyncio.timeout(10), connected(keyed) as client:
            head = f"POST {CHAT} HTTP/1.1\r\nHost: node\r\nContent-Length: 1000000\r\n\r\n"
            await client.send(head.encode() + b"{")
            return await client.read(await client.answer())

    assert asyncio.run(scene()).status == 401


def test_health_is_open(keyed: Node) -> None:
    assert got(keyed, "/health").status == 200
    assert got(keyed, "/health", method="HEAD").status == 200


def test_the_command_of_the_node_s_user_needs_no_key(keyed: Node) -> None:
    where = ("--config", str(keyed.folder / "viiwork.yaml"))
    token = keyed.folder / "state" / "operator.token"
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
    assert viiwork(keyed, "status", *where).returncode == 0
    assert viiwork(keyed, "alias", "set", "a", "m", *where).returncode == 0
    assert viiwork(keyed, "down", "m", *where).returncode == 0
    assert viiwork(keyed, "up", "m", *where).returncode == 0
    assert token.read_text() not in keyed.log()


def test_other_users_show_a_key(keyed: Node) -> None:
    at = ("--node", f"http://{keyed.host}:{keyed.port}")
    refused = viiwork(keyed, "models", *at)
    assert refused.returncode != 0
    assert "VIIWORK_API_KEY" in refused.stderr
    assert viiwork(keyed, "models", *at, VIIWORK_API_KEY=TOKEN).returncode == 0
    denied = viiwork(keyed, "alias", "set", "b", "m", *at, VIIWORK_API_KEY=TOKEN)
    assert denied.returncode != 0
    assert "only the node's own machine" in denied.stderr


@pytest.mark.parametrize(("method", "path"), [("DELETE", "/v1/aliases/x"), ("POST", "/v1/models/down")])
@pytest.mark.parametrize("shown", [[], [BEARER]])
def test_no_key_makes_an_operator(keyed: Node, method: str, path: str, shown: list[Header]) -> None:
    answer = got(keyed, path, *shown, method=method)
    assert (answer.status, answer.error["code"]) == (403, "forbidden")


def test_a_forged_forward_is_no_way_in(keyed: Node) -> None:
    assert got(keyed, CHAT, (FORWARDED, "beta"), method="POST", body=chat("m")).status == 401


# In a mesh


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Node, Node]]:
    """Two nodes of a secured mesh; the model is the second's alone."""
    hosts = {"alpha": "127.0.0.41", "beta": "127.0.0.42"}
    ports = {name: free_port(host) for name, host in hosts.items()}

    def config(name: str, *models: str) -> dict[str, Any]:
        seeds = [f"{host}:{ports[other]}" for other, host in hosts.items() if other != name]
        mesh = mesh_at(hosts[name], ports[name], seeds)
        return {**KEYS, "mesh": mesh, "health": {"interval": "0.3s"}, "models": [model(one) for one in models]}

    folder = tmp_path_factory.mktemp("pair")
    with (
        started("alpha", folder / "alpha", config("alpha"), healthy=False) as alpha,
        started("beta", folder / "beta", config("beta", "m"), healthy=False) as beta,
    ):
        served = lambda: b'"m"' in got(alpha, "/v1/models", BEARER).body  # noqa: E731  # said once, asked often
        until(served, "alpha knows beta's model", within=40)
        yield alpha, beta


@pytest.mark.slow
def test_members_need_no_key(pair: tuple[Node, Node]) -> None:
    alpha, beta = pair
    answer = got(alpha, CHAT, BEARER, method="POST", body=chat("m"))
    assert answer.status == 200
    assert (answer.headers["x-viiwork-node"], answer.headers["x-viiwork-origin"]) == ("beta", "alpha")
    cluster = json.loads(got(alpha, "/v1/cluster", BEARER).body)
    assert [one["node"] for one in cluster["members"] if "status" in one] == ["alpha", "beta"]
    rid = answer.headers["x-request-id"]
    assert got(beta, f"/v1/why/{rid}", BEARER).status == 200, "asked of the other member"


@pytest.mark.slow
def test_only_a_proof_makes_a_member(pair: tuple[Node, Node]) -> None:
    _, beta = pair
    forged = got(beta, CHAT, (FORWARDED, "alpha"), ("X-Viiwork-Node", "alpha"), method="POST", body=chat("m"))
    assert (forged.status, forged.error["code"]) == (401, "unproven")
    for key, status in ((SECRET, 200), ("A" * 43 + "=", 401)):
        assert got(beta, "/v1/status", *_signed(key, "GET", "/v1/status")).status == status
    for path in ("/v1/models/down", "/v1/drain", "/v1/kv/forget", "/v1/keys/x", "/v1/aliases/x", "/v1/kv/replicas"):
        method = "PUT" if path.endswith(("/x", "replicas")) else "POST"
        for headers in ([], [BEARER], [("X-Viiwork-Auth", "v2=AAAA")]):
            assert got(beta, path, *headers, method=method).status == 401, (path, headers)


@pytest.mark.slow
def test_a_stream_of_the_mesh_tells_of_both(pair: tuple[Node, Node]) -> None:
    alpha, _ = pair

    async def scene() -> Answer:
        async with asyncio.timeout(20), connected(alpha) as client:
            await client.ask(b"", path="/v1/mesh/stream", method="GET", headers=[BEARER])
            answer = await client.answer("GET")
            while b'"beta"' not in answer.body:
                await client.read(answer, len(answer.pieces) + 1)
            return answer

    assert asyncio.run(scene()).status == 200


@pytest.mark.slow
def test_the_secret_is_enough_for_a_command(pair: tuple[Node, Node]) -> None:
    alpha, beta = pair
    at = ("--node", f"http://{beta.host}:{beta.port}")
    assert viiwork(alpha, "status", *at).returncode != 0
    done = viiwork(alpha, "status", *at, VIIWORK_MESH_SECRET=SECRET)
    assert done.returncode == 0, done.stderr


def _signed(secret: str, method: str, path: str) -> list[Header]:
    keys = MeshSecret.from_bytes(base64.b64decode(secret))
    return Signer(keys.signature, node="alpha", clock=SystemClock()).sign(method, path, [], b"")


@pytest.mark.slow
def test_the_secret_is_found_beside_the_configuration(pair: tuple[Node, Node]) -> None:
    alpha, _ = pair
    where, env = ("--config", str(alpha.folder / "viiwork.yaml")), alpha.folder / "viiwork.env"
    (alpha.folder / "state" / "operator.token").rename(alpha.folder / "token")
    try:
        refused = viiwork(alpha, "alias", "set", "a", "m", *where)
        assert refused.returncode == 1
        assert "set VIIWORK_MESH_SECRET to the secret of the mesh" in refused.stderr
        env.write_text(f"VIIWORK_MESH_SECRET={SECRET}\n")
        for words in (("status",), ("alias", "set", "a", "m")):
            done = viiwork(alpha, *words, *where)
            assert done.returncode == 0, done.stderr
        code = viiwork(alpha, "join-code", *where)
        told = decode(code.stdout)
        assert told.secret_text == SECRET
        assert (
            told.address == f"127.0.0.41:{json.loads((alpha.folder / 'viiwork.yaml').read_text())['mesh']['bind_port']}"
        )
        assert code.stdout.strip() not in alpha.log()
    finally:
        (alpha.folder / "token").rename(alpha.folder / "state" / "operator.token")
        env.unlink(missing_ok=True)

"""Who belongs to the mesh: who is let in and who is told why not, whose name it is, and how a secret is changed."""

from __future__ import annotations

import asyncio
import base64
import json
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from http_node import CHAT, SECRET, Node, ask, chat, connected, model, script, soon, started, streamed, until

pytestmark = pytest.mark.slow

PIECE = b"data: {}\n\n"
FIRST, SECOND, THIRD = "127.0.0.31", "127.0.0.32", "127.0.0.33"
OTHER = base64.b64encode(b"o" * 32).decode()
SECRET_NAME, PREV_NAME = "VIIWORK_MESH_SECRET", "VIIWORK_MESH_SECRET_PREV"


def free_port(*hosts: str) -> int:
    """One that is free on all of them, for TCP and UDP."""
    for _ in range(50):
        with ExitStack() as stack:
            one = stack.enter_context(socket.socket())
            one.bind((hosts[0], 0))
            port: int = one.getsockname()[1]
            try:
                for host in hosts:
                    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
                        if (host, kind) != (hosts[0], socket.SOCK_STREAM):
                            stack.enter_context(socket.socket(socket.AF_INET, kind)).bind((host, port))
            except OSError:
                continue
            return port
    raise AssertionError("no port is free everywhere")


def configuration(host: str, api: int, gossip: int, seeds: list[str], **mesh: Any) -> dict[str, Any]:
    return {
        "api": {"host": host, "port": api},
        "mesh": {
            "network": "seeds",
            "advertise": host,
            "bind_port": gossip,
            "seeds": [f"{seed}:{gossip}" for seed in seeds],
            "capacity_poll": "200ms",
            "rejoin_interval": "1s",
            **mesh,
        },
        "routing": {"queue_timeout": "10s"},
        "models": [model("m")],
    }


def members(node: Node) -> set[str]:
    return {member["node"] for member in node.get("/v1/status")["members"]}


@contextmanager
def node(
    name: str,
    folder: Path,
    host: str,
    ports: tuple[int, int],
    seeds: list[str],
    /,
    *,
    secrets: Mapping[str, str] | None = None,
    **mesh: Any,
) -> Iterator[Node]:
    config = configuration(host, *ports, seeds, **mesh)
    with started(name, folder / name, config, environ=secrets) as made:
        yield made


@pytest.mark.parametrize(
    ("secrets", "mesh", "event"),
    [
        pytest.param({SECRET_NAME: OTHER}, {}, "other secret", id="another secret"),
        pytest.param({SECRET_NAME: ""}, {"open": True}, "mesh mode mismatch", id="open"),
        pytest.param({}, {"name": "another"}, "other mesh name", id="another name"),
    ],
)
def test_who_differs_stays_out_and_both_say_why(
    tmp_path: Path, secrets: dict[str, str], mesh: dict[str, Any], event: str
) -> None:
    ports = free_port(FIRST, SECOND), free_port(FIRST, SECOND)
    with (
        node("alpha", tmp_path, FIRST, ports, []) as alpha,
        node("stranger", tmp_path, SECOND, ports, [FIRST], secrets=secrets, **mesh) as stranger,
    ):
        assert stranger.heard(event)["address"] == f"{FIRST}:{ports[1]}"
        assert stranger.heard(event)["reason"]
        told = alpha.heard(event)
        assert (told["address"], told["node"]) == (SECOND, "stranger")
        # A few looks later it is still one line on each side.
        polls = len(stranger.events(event))
        assert asyncio.run(ask(stranger, chat("m"))).status == 200, "it serves what it has"
        until(lambda: stranger.process.poll() is None and stranger.answers(), "it runs on")
        assert (polls, len(alpha.events(event))) == (1, 1)
        assert members(alpha) == members(stranger) == set()


def test_a_second_process_of_the_same_name_ends_and_says_who_has_it(tmp_path: Path) -> None:
    ports = free_port(FIRST, SECOND), free_port(FIRST, SECOND)
    with node("alpha", tmp_path, FIRST, ports, []) as alpha:
        config = {**configuration(SECOND, *ports, [FIRST]), "node": {"name": "alpha", "state_dir": str(tmp_path / "s")}}
        (tmp_path / "second.yaml").write_text(json.dumps({**config, "models": []}))
        command = [Path(sys.executable).with_name("viiwork"), "serve", "--config", tmp_path / "second.yaml"]
        environ = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), SECRET_NAME: SECRET}
        ended = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)
        assert ended.returncode == 1, ended.stderr
        assert f"name in use by the node alpha at {FIRST}:{ports[0]}" in ended.stderr
        assert "remedy: give this node a name of its own" in ended.stderr
        assert "Traceback" not in ended.stderr
        assert alpha.answers()
        assert SECRET not in ended.stderr


def test_a_restart_within_a_second_is_one_member(tmp_path: Path) -> None:
    ports = free_port(FIRST, SECOND), free_port(FIRST, SECOND)
    with node("alpha", tmp_path, FIRST, ports, [SECOND]) as alpha:
        with node("beta", tmp_path, SECOND, ports, [FIRST]) as beta:
            until(lambda: members(alpha) == {"beta"}, "they know each other")
            before = beta.get("/v1/status")["node_id"]
            beta.process.send_signal(signal.SIGKILL)
            beta.process.wait()
        with node("beta", tmp_path, SECOND, ports, [FIRST]) as again:
            seen: list[int] = []

            def settled() -> bool:
                found = alpha.get("/v1/status")["members"]
                seen.append(len(found))
                return bool(members(again)) and len(found) == 1 and answered_by(alpha, "beta")

            until(settled, "the new run is known, and serves")
            assert max(seen) <= 1, "never two members of one name"
            assert again.get("/v1/status")["node_id"] != before


def answered_by(entry: Node, host: str) -> bool:
    answer = asyncio.run(ask(entry, chat("m"), path=f"{CHAT}?host={host}"))
    return answer.status == 200 and answer.headers["x-viiwork-node"] == host


def test_a_node_that_stops_says_so_first_then_drains_then_ends_its_engines(tmp_path: Path) -> None:
    ports = free_port(FIRST, SECOND), free_port(FIRST, SECOND)
    with (
        node("alpha", tmp_path, FIRST, ports, [SECOND]) as alpha,
        node("beta", tmp_path, SECOND, ports, [FIRST]) as beta,
    ):
        until(lambda: answered_by(alpha, "beta"), "they know each other")
        engine = beta.engine("m")

        async def scene() -> bytes:
            async with asyncio.timeout(60), connected(beta) as client:
                steps = script(("stream",), ("chunk", PIECE), ("gate", "go"), ("chunk", PIECE), ("end",))
                await client.ask(chat("m", steps, stream=True))
                running = await client.read(await client.answer(), pieces=1)
                beta.process.send_signal(signal.SIGTERM)
                await soon(lambda: members(alpha) == set(), "the other one was told")
                assert (await ask(alpha, chat("m"), path=f"{CHAT}?host=beta")).status == 404, "nothing goes there"
                assert beta.process.poll() is None
                await asyncio.to_thread(engine.open, "go")  # the engine still runs
                return (await client.read(running)).body

        assert asyncio.run(scene()) == PIECE * 2, "the stream was finished"
        assert beta.process.wait(30) == 0


class Trio:
    """Three nodes, of which the first two have the model; all requests enter at the third."""

    HOSTS = {"alpha": FIRST, "beta": SECOND, "gamma": THIRD}  # noqa: RUF012  # never changed

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ports = free_port(*self.HOSTS.values()), free_port(*self.HOSTS.values())
        self.nodes: dict[str, Node] = {}
        self.stacks: dict[str, ExitStack] = {}
        self.answers: list[int] = []

    def start(self, name: str, secrets: dict[str, str]) -> None:
        seeds = [host for other, host in self.HOSTS.items() if other != name]
        config = configuration(self.HOSTS[name], *self.ports, seeds)
        config["models"] = [] if name == "gamma" else config["models"]
        stack = self.stacks[name] = ExitStack()
        self.nodes[name] = stack.enter_context(started(name, self.folder / name, config, environ=secrets))

    def close(self) -> None:
        for stack in self.stacks.values():
            stack.close()

    def complete(self) -> bool:
        known = all(members(one) == self.HOSTS.keys() - {one.name} for one in self.nodes.values())
        return known and all(answered_by(self.nodes["gamma"], name) for name in ("alpha", "beta"))

    async def restart(self, name: str, secrets: dict[str, str]) -> None:
        await asyncio.to_thread(self.stacks[name].close)
        await asyncio.to_thread(self.start, name, secrets)
        await soon(self.complete, f"all is as before, with {name}", 60)

    @asynccontextmanager
    async def loaded(self) -> AsyncIterator[None]:
        """Four clients ask all the time."""
        stop = asyncio.Event()

        async def client() -> None:
            while not stop.is_set():
                answer = await ask(self.nodes["gamma"], chat("m", streamed(PIECE), stream=True))
                self.answers.append(answer.status)

        clients = [asyncio.create_task(client()) for _ in range(4)]
        try:
            yield
        finally:
            stop.set()
            await asyncio.gather(*clients)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_secret_is_changed_under_load_in_one_pass_and_nobody_is_shut_out(tmp_path: Path) -> None:
    finished = "the mesh's secret is changed: every member knows the new one, which is used from now on"
    both, alone = {SECRET_NAME: OTHER, PREV_NAME: SECRET}, {SECRET_NAME: OTHER}
    trio = Trio(tmp_path)

    def everybody_has_changed() -> bool:
        return all(one.events(finished) for one in trio.nodes.values())

    async def scene() -> None:
        async with trio.loaded():
            await trio.restart("alpha", both)
            await trio.restart("beta", both)
        await trio.restart("gamma", both)  # whoever asks cannot ask a node that is being restarted
        async with trio.loaded():
            await soon(everybody_has_changed, "all use the new secret", 60)
            await trio.restart("beta", alone)

    try:
        for name in trio.HOSTS:
            trio.start(name, {})
        until(trio.complete, "all know each other", 60)
        asyncio.run(scene())
    finally:
        trio.close()
    assert set(trio.answers) == {200}, "not one request was lost"
    assert len(trio.answers) > 20

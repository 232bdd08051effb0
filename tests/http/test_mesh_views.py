"""Three nodes: what one shows of all of them, over HTTP and in the terminal."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from commands import command
from http_node import SECRET, Answer, Client, Node, ask, chat, connected, model, script, soon, started, until
from meshes import Mesh, free_port, mesh_at

pytestmark = pytest.mark.slow

STREAM = "/v1/mesh/stream"
HOSTS = {"front": "127.0.0.31", "back": "127.0.0.32", "side": "127.0.0.33"}
MODELS = {
    "front": (),
    "back": (model("far", context=4096),),
    "side": (model("far", context=8192), model("own", context=1024)),
}
DONE = b"data: [DONE]\n\n"


def configuration(host: str, port: int, seeds: list[str], *models: dict[str, Any], **mesh: Any) -> dict[str, Any]:
    return {"mesh": mesh_at(host, port, seeds, **mesh), "health": {"interval": "0.3s"}, "models": list(models)}


class Nodes(Mesh):
    """`front` has no model; the others have `far`, with different contexts, and `side` has one of its own."""

    def config(self, name: str) -> dict[str, Any]:
        return {"mesh": self.section(name), "health": {"interval": "0.3s"}, "models": list(MODELS[name])}

    def settled(self) -> None:
        """All know each other and what they serve."""
        for name in HOSTS.keys() - self.running.keys():
            self.start(name)
        for name in HOSTS:
            until(lambda name=name: self.sees_all(name), f"{name} sees all")  # type: ignore[misc]  # mypy cannot type a lambda's default

    def sees_all(self, name: str) -> bool:
        entries = {one["name"]: one for one in self[name].get("/v1/fleet/capacity")["models"]}
        return {name: (one["slots"], one["free"]) for name, one in entries.items()} == {"far": (4, 4), "own": (2, 2)}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    nodes = Nodes(tmp_path_factory.mktemp("views"), HOSTS)
    try:
        yield nodes
    finally:
        nodes.stop()


@pytest.fixture
def nodes(shared: Nodes) -> Nodes:
    shared.settled()
    return shared


class Viewer:
    """A client of the mesh stream."""

    def __init__(self, client: Client, answer: Answer) -> None:
        self._client, self.answer = client, answer
        self._taken = 0

    def frames(self) -> list[tuple[str, Any]]:
        """Name and data of each event."""
        blocks = [one for one in self.answer.body.decode().split("\n\n")[:-1] if not one.startswith(":")]
        lines = [block.split("\n") for block in blocks]
        return [(name.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for name, data in lines]

    async def next(self, name: str, **fields: Any) -> Any:
        """The next event of that name with these fields."""
        while True:
            while self._taken >= len(self.frames()):
                assert not self.answer.broken
                await self._client.read(self.answer, len(self.answer.pieces) + 1)
            self._taken += 1
            kind, data = self.frames()[self._taken - 1]
            if kind == name and fields.items() <= data.items():
                return data


@asynccontextmanager
async def looking(node: Node) -> AsyncIterator[Viewer]:
    async with asyncio.timeout(60), connected(node) as client:
        await client.ask(b"", path=STREAM, method="GET")
        answer = await client.answer("GET")
        assert (answer.status, answer.headers["content-type"]) == (200, "text/event-stream")
        yield Viewer(client, answer)


def gated(name: str) -> bytes:
    """A streamed answer that waits after its first bytes."""
    steps = script(("stream",), ("chunk", b"data: {}\n\n"), ("gate", name), ("chunk", DONE), ("end",))
    return chat("far", steps, stream=True)


async def followed(viewer: Viewer, *names: str) -> None:
    """Wait until these nodes' events come."""
    left = set(names)
    while left:
        left.discard((await viewer.next("activity"))["hostname"])


def test_a_request_that_another_node_serves_is_seen_from_here(nodes: Nodes) -> None:
    front, back = nodes["front"], nodes["back"]
    address = f"{HOSTS['back']}:{back.port}"

    async def scene() -> None:
        async with looking(front) as early:
            await followed(early, "back")
            asked = asyncio.ensure_future(ask(back, gated("seen"), headers=[("X-Request-Id", "seen")]))
            begun = await early.next("activity", rid="seen")
            assert (begun["message"], begun["type"]) == ("far → far/0", "request")
            assert (begun["hostname"], begun["addr"]) == ("back", address)
            assert begun["node_id"] == back.get("/v1/status")["node_id"]
            first = await early.next("activity", rid="seen")
            assert first["message"].startswith("far → far/0 first token after ")
            assert "replay" not in first
            async with looking(front) as late:
                for expected in (begun, first):
                    assert await late.next("activity", rid="seen") == {**expected, "replay": True}
                back.engine("far").open("seen")
                assert (await asked).body.endswith(DONE)
                for viewer in (early, late):
                    ended = await viewer.next("activity", rid="seen")
                    assert ended["message"].startswith("far → far/0 done (")
                    assert "replay" not in ended

    asyncio.run(scene())


def test_a_forward_is_seen_at_both_ends(nodes: Nodes) -> None:
    front = nodes["front"]

    async def scene() -> None:
        async with looking(front) as viewer:
            await followed(viewer, "back", "side")
            await ask(front, chat("far"), headers=[("X-Request-Id", "both")])
            told = [await viewer.next("activity", rid="both") for _ in range(4)]
            here = [one["message"].split(" (")[0] for one in told if one["hostname"] == "front"]
            (there,) = {one["hostname"] for one in told} - {"front"}
            assert here == [f"far → peer {there}", f"far → peer {there} done"]
            assert [one["addr"] for one in told if one["hostname"] == "front"] == ["", ""]

    asyncio.run(scene())


def test_a_request_of_a_node_that_dies_is_told_to_be_lost(nodes: Nodes) -> None:
    front, back = nodes["front"], nodes["back"]

    async def scene() -> None:
        async with looking(front) as viewer:
            await followed(viewer, "back")
            asked = asyncio.ensure_future(ask(back, gated("lost"), headers=[("X-Request-Id", "lost")]))
            await viewer.next("activity", rid="lost")
            await viewer.next("activity", rid="lost")
            back.process.kill()
            lost = await viewer.next("activity", rid="lost")
            assert lost["message"].startswith("far → far/0 lost (")
            assert lost["hostname"] == "back"
            gone = await viewer.next("cluster")
            while "back" in [one["node"] for one in gone["members"]]:
                gone = await viewer.next("cluster")
            assert "far" in gone["models"], "another node has it still"
            await asyncio.gather(asked, return_exceptions=True)

    asyncio.run(scene())
    nodes.stop("back")


def test_the_stream_begins_with_the_members_and_the_aliases(nodes: Nodes) -> None:
    async def scene() -> None:
        async with looking(nodes["side"]) as viewer:
            cluster = await viewer.next("cluster")
            assert {one["node"] for one in cluster["members"]} == set(HOSTS)
            assert not {"age_ms", "rtt_ms", "uptime_s"} & {key for one in cluster["members"] for key in one}
            assert (await viewer.next("aliases"))["aliases"] == []
            steps = script(("gate", "busy"), ("json", 200, "{}"))
            asked = asyncio.ensure_future(ask(nodes["back"], chat("far", steps)))
            told = cluster
            while not [one for one in told["members"] if one["node"] == "back" and _busy(one)]:
                told = await viewer.next("cluster")
            nodes["back"].engine("far").open("busy")
            await asked

    asyncio.run(scene())


def _busy(member: dict[str, Any]) -> bool:
    return any(one["busy"] for one in member.get("models", ()))


def test_a_node_that_stops_ends_its_viewers(nodes: Nodes) -> None:
    async def scene() -> None:
        async with looking(nodes["side"]) as viewer:
            await viewer.next("activity")
            nodes["side"].process.terminate()
            await viewer._client.read(viewer.answer)
            assert not viewer.answer.broken
            await soon(lambda: nodes["side"].process.poll() is not None, "it has ended")

    asyncio.run(scene())
    nodes.stop("side")


def test_capacity_of_all_nodes_is_added_up(nodes: Nodes) -> None:
    whole = nodes["front"].get("/v1/fleet/capacity")
    assert (whole["view"], whole["stale_after_s"]) == ("front", 3.0)
    far, own = whole["models"]
    assert {name: far[name] for name in ("name", "engine", "slots", "busy", "free", "queued", "ctx")} == {
        "name": "far",
        "engine": "scripted",
        "slots": 4,
        "busy": 0,
        "free": 4,
        "queued": 0,
        "ctx": 4096,
    }
    assert [(one["node"], one["slots"], one["ctx"]) for one in far["hosts"]] == [("back", 2, 4096), ("side", 2, 8192)]
    assert far["hosts"][0]["api"] == f"{HOSTS['back']}:{nodes['back'].port}"
    assert all(0 <= one["age_ms"] < 10_000 and "stale" not in one for one in far["hosts"])
    assert (own["name"], own["ctx"]) == ("own", 1024)
    one = nodes["side"].get("/v1/fleet/capacity?model=own")
    assert [entry["name"] for entry in one["models"]] == ["own"]
    assert one["models"][0]["hosts"][0]["age_ms"] == 0


def test_the_context_that_is_listed_is_the_smallest_that_is_served(nodes: Nodes) -> None:
    for name, owner in (("front", "peer"), ("side", "local"), ("back", "local")):
        listed = {one["id"]: one for one in nodes[name].get("/v1/models")["data"]}
        assert (listed["far"]["owned_by"], listed["far"]["context_length"]) == (owner, 4096)
        assert listed["own"]["max_model_len"] == 1024


@pytest.mark.parametrize("name", ["nobody", "%00%3Cscript%3E", "x" * 5000])
def test_of_a_name_that_nobody_serves_nothing_is_told(nodes: Nodes, name: str) -> None:
    answer = asyncio.run(ask(nodes["front"], b"", path=f"/v1/fleet/capacity?model={name}", method="GET"))
    assert answer.status == 200
    assert json.loads(answer.body)["models"] == []


def test_an_alias_is_resolved(nodes: Nodes) -> None:
    secret = {"VIIWORK_MESH_SECRET": SECRET}
    done = command(nodes["front"], "alias", "set", "coder", "far", "--fallback", "own", **secret)
    assert done.returncode == 0, done.stderr
    found = nodes["front"].get("/v1/fleet/capacity?model=coder")
    assert (found["resolved_from"], [one["name"] for one in found["models"]]) == ("coder", ["far"])
    command(nodes["front"], "alias", "set", "nothing", "gone", "--force", **secret)
    assert nodes["front"].get("/v1/fleet/capacity?model=nothing")["models"] == []
    members = nodes["front"].get("/v1/cluster")["members"]
    assert {one["node"] for one in members if "aliases_equal" in one} == set(HOSTS)
    until(lambda: all(one["aliases_equal"] for one in nodes["front"].get("/v1/cluster")["members"]), "all have them")
    for name in ("coder", "nothing"):
        command(nodes["front"], "alias", "rm", name, **secret)


def test_the_members_are_shown_with_what_they_tell(nodes: Nodes) -> None:
    cluster = nodes["front"].get("/v1/cluster")
    assert (cluster["view"], cluster["mesh"], cluster["models"]) == ("front", "secured", ["far", "own"])
    members = {one["node"]: one for one in cluster["members"]}
    assert members.keys() == HOSTS.keys()
    side = members["side"]
    assert (side["state"], side["role"], side["addr"]) == ("alive", "node", f"127.0.0.33:{nodes['side'].port}")
    assert [(one["name"], one["slots"], one["busy"]) for one in side["models"]] == [("far", 2, 0), ("own", 2, 0)]
    assert abs(side["clock_skew_s"]) <= 2
    assert side["age_ms"] < 10_000
    assert side["status"]["uptime_s"] >= 0
    assert [one["status"] for one in side["status"]["models"][0]["backends"]] == ["healthy"]
    assert members["front"]["status"]["node"] == "front"
    text = json.dumps(cluster)
    assert "heads" not in text
    assert "fingerprint" not in text


def test_the_status_in_the_terminal(nodes: Nodes) -> None:
    side = nodes["side"]
    done = command(side, "status", "--mesh")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert "\x1b" not in done.stdout
    assert lines[0].startswith("side  viiwork 0.")
    assert "MODEL  BACKEND  ENGINE    STATE    PHASE  SLOTS  QUEUE" in lines
    assert "far    far/0    scripted  healthy         0/2    0" in lines
    assert next(line for line in lines if line.startswith("back")).split()[2] == "alive"
    assert next(line for line in lines if line.startswith("far") and "back" in line).split()[:6] == [
        "far",
        "4",
        "0",
        "4",
        "0",
        "4096",
    ]
    told = json.loads(command(side, "status", "--json").stdout)
    assert (told["node"], [one["name"] for one in told["models"]]) == ("side", ["far", "own"])
    assert json.loads(command(side, "status", "--mesh", "--json").stdout)["view"] == "side"
    there = command(side, "status", "--url", f"http://{nodes['back'].host}:{nodes['back'].port}")
    assert there.stdout.startswith("back  viiwork ")


def test_the_models_in_the_terminal(nodes: Nodes) -> None:
    lines = [line.split() for line in command(nodes["back"], "models").stdout.splitlines()]
    assert lines == [
        ["MODEL", "OWNED", "BY", "TARGET", "CONTEXT"],
        ["far", "local", "-", "4096"],
        ["own", "peer", "-", "1024"],
    ]
    told = json.loads(command(nodes["back"], "models", "--json").stdout)
    assert [one["id"] for one in told["data"]] == ["far", "own"]


def test_without_a_mesh_and_with_a_model_that_is_not_well(tmp_path: Path) -> None:
    config = {"models": [model("never", args=["--not-ready"]), model("well")], "health": {"interval": "0.3s"}}
    with started("alone", tmp_path / "alone", config, healthy=False) as node:
        until(lambda: node.model("well")["backends"][0]["status"] == "healthy", "one of them is well")
        done = command(node, "status")
        assert done.returncode == 1, done.stderr
        assert "no mesh" in done.stdout
        assert next(line for line in done.stdout.splitlines() if line.startswith("never")).split()[3] != "healthy"
        assert "MEMBER" not in done.stdout
        members = node.get("/v1/cluster")["members"]
        assert [(one["node"], one["addr"]) for one in members] == [("alone", None)]
        assert node.get("/v1/fleet/capacity?model=well")["models"][0]["free"] == 2
    gone = command(node, "status")
    assert gone.returncode == 2
    assert gone.stdout == ""
    assert gone.stderr.startswith("no node runs with the state folder ")
    assert "remedy: start it with `viiwork serve`" in gone.stderr
    nobody = command(node, "status", "--url", "http://127.0.0.1:9")
    assert nobody.returncode == 2
    assert "does not answer" in nobody.stderr


def test_an_open_mesh_is_followed_too(tmp_path: Path) -> None:
    places = {name: (host, free_port(host)) for name, host in (("left", "127.0.0.36"), ("right", "127.0.0.37"))}
    with ExitStack() as stack:
        found = {}
        for name, (host, port) in places.items():
            seeds = [f"{there}:{at}" for other, (there, at) in places.items() if other != name]
            models = [model("far")] if name == "right" else []
            config = configuration(host, port, seeds, *models, open=True, secret_env="NO_SECRET")
            found[name] = stack.enter_context(started(name, tmp_path / name, config))
        until(lambda: found["left"].get("/v1/models")["data"], "the models are known")

        async def scene() -> None:
            async with looking(found["left"]) as viewer:
                await followed(viewer, "right")
                await ask(found["right"], chat("far"), headers=[("X-Request-Id", "open")])
                assert (await viewer.next("activity", rid="open"))["hostname"] == "right"

        asyncio.run(scene())


def test_a_wrong_secret_does_not_read_along(nodes: Nodes) -> None:
    forged = [("X-Viiwork-Node", "side"), ("X-Viiwork-Ts", "1"), ("X-Viiwork-Nonce", "n" * 22)]
    forged.append(("X-Viiwork-Auth", "v2=AAAA"))
    answer = asyncio.run(ask(nodes["back"], b"", path="/v1/activity/stream", method="GET", headers=forged))
    assert (answer.status, answer.error["code"]) == (401, "unproven")

"""viiwork doctor at nodes that run: each finding of a node, its mesh, its models and their caches."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from http_node import SECRET, Node, model, plugin_path, started, until
from meshes import free_port
from test_mesh_views import configuration

pytestmark = pytest.mark.slow

HOSTS = ("127.0.0.41", "127.0.0.42")
SHARED = model("shared", "fake", kv_share={"group": "g", "min_tokens": 200})
OTHER_SECRET = "A" * 43 + "="


@dataclass(frozen=True)
class Found:
    """What the doctor said."""

    status: int
    all: list[dict[str, str]]
    text: str

    def of(self, topic: str, level: str) -> list[str]:
        return [one["what"] for one in self.all if (one["topic"], one["level"]) == (topic, level)]

    def one(self, topic: str, level: str, *words: str) -> dict[str, str]:
        """The one finding of that kind with these words."""
        fits = [one for one in self.all if (one["topic"], one["level"]) == (topic, level)]
        (found,) = [one for one in fits if all(word in one["what"] for word in words)] or [{"what": self.text}]
        assert "level" in found, self.text
        assert level == "ok" or found["remedy"]
        return found


def doctor(folder: Path, *args: str, environ: Mapping[str, str] | None = None, without: tuple[str, ...] = ()) -> Found:
    """Run it with the configuration in `folder`, as the node there is run; `without` these variables."""
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "PYTHONPATH": plugin_path(folder / "site"),
        "VIIWORK_PLUGINS": "scripted,fake",
        "VIIWORK_MESH_SECRET": SECRET,
        **(environ or {}),
    }
    env = {name: value for name, value in env.items() if name not in without}
    command: list[str | Path] = [Path(sys.executable).with_name("viiwork"), "doctor"]
    command += ["--json", "--timeout", "30", "--config", folder / "viiwork.yaml", *args]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode in {0, 1, 2}, done.stderr
    assert not done.stderr, done.stderr
    found = json.loads(done.stdout)
    assert SECRET not in done.stdout
    levels = {one["level"] for one in found}
    assert done.returncode == (2 if "problem" in levels else 1 if "warning" in levels else 0)
    return Found(done.returncode, found, done.stdout)


def only(*topics: str) -> list[str]:
    return [word for topic in topics for word in ("--only", topic)]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Node, Node]]:
    """Two nodes that share the caches of one model; the first has two models of its own besides."""
    folder, ports = tmp_path_factory.mktemp("doctor"), [free_port(host) for host in HOSTS]
    seeds = [f"{host}:{port}" for host, port in zip(HOSTS, ports, strict=True)]
    sick = model("sick", "fake", fake={"exit_at_start": True})
    with ExitStack() as stack:
        made = []
        for host, port, name, own in zip(HOSTS, ports, ("alpha", "beta"), ([model("own")], [sick]), strict=True):
            config = configuration(host, port, [one for one in seeds if not one.startswith(host)], SHARED, *own)
            config["health"]["max_respawns"] = 0
            config["routing"] = {"policy": "least_busy", "queue_timeout": "10s"}
            made.append(stack.enter_context(started(name, folder / name, config, healthy=False)))
        alpha, beta = made
        until(alpha.ready, "alpha is healthy")
        until(lambda: len(_hosts(alpha, "shared")) == len(_hosts(beta, "shared")) == 2, "both see both", 60)
        until(lambda: beta.model("sick")["backends"][0]["status"] == "dead", "sick is given up", 60)
        yield alpha, beta


def _hosts(node: Node, name: str) -> list[Any]:
    served = {one["name"]: one["hosts"] for one in node.get("/v1/fleet/capacity")["models"]}
    return [one for one in served.get(name, ()) if one.get("slots")]


def test_a_node_that_is_well(pair: tuple[Node, Node]) -> None:
    found = doctor(pair[0].folder, *only("node", "ports", "config", "binaries", "files", "gpus"))
    assert found.status == 0, found.text
    found.one("node", "ok", "alpha answers at http://127.0.0.1:")
    found.one("node", "ok", "shared/0 is healthy, 0 of 2 slots taken")
    found.one("ports", "ok", "the API answers at 127.0.0.41:")
    found.one("ports", "ok", "the gossip answers at 127.0.0.41 tcp")
    found.one("config", "ok", "node alpha, models: shared on fake, own on scripted")


def test_a_backend_that_is_given_up(pair: tuple[Node, Node]) -> None:
    found = doctor(pair[1].folder, *only("node"))
    found.one("node", "problem", "sick/0 is dead")


def test_a_parked_model_is_no_fault(pair: tuple[Node, Node]) -> None:
    alpha = pair[0]
    environ = {"VIIWORK_MESH_SECRET": SECRET, "PATH": os.environ["PATH"]}
    for word, level in (("down", "parked"), ("up", "healthy")):
        command = [Path(sys.executable).with_name("viiwork"), word, "own", "--config", alpha.folder / "viiwork.yaml"]
        subprocess.run(command, env=environ, check=True, capture_output=True)
        until(lambda level=level: {b["status"] for b in alpha.model("own")["backends"]} == {level}, level)  # type: ignore[misc]  # mypy cannot type a lambda's default
        if word == "down":
            doctor(alpha.folder, *only("node")).one("node", "ok", "own is parked", "viiwork up own")


def test_each_model_is_asked_here_and_through_the_other_node(pair: tuple[Node, Node]) -> None:
    found = doctor(pair[0].folder, *only("models"))
    found.one("models", "ok", "own on alpha answers")
    found.one("models", "ok", "shared on alpha answers")
    found.one("models", "ok", "shared on beta through alpha answers")
    found.one("models", "ok", "shared on alpha through beta answers")
    # Neither of these engines knows tools.
    for where in ("own on alpha", "shared on alpha", "shared on beta through alpha"):
        found.one("models", "warning", f"{where} answers a tool request without a call")
    found.one("models", "warning", "sick has no slot anywhere now")


def test_the_members_are_told(pair: tuple[Node, Node]) -> None:
    found = doctor(pair[0].folder, *only("mesh", "clock"))
    found.one("mesh", "ok", "the mesh is secured by VIIWORK_MESH_SECRET (id ")
    found.one("mesh", "ok", "beta (127.0.0.42:", "is a member, its report is")
    found.one("mesh", "ok", "beta reaches this node's API")
    found.one("mesh", "ok", "seeds answers: 1 seen, 1 of them known")
    found.one("clock", "ok", "the clock of beta agrees")


def test_a_shell_without_the_secret(pair: tuple[Node, Node]) -> None:
    found = doctor(pair[0].folder, *only("mesh"), environ={"VIIWORK_MESH_SECRET": ""})
    found.one("mesh", "warning", "the node has its secret, and this shell has not")
    assert found.status == 1


def test_a_session_moves(pair: tuple[Node, Node]) -> None:
    found = doctor(pair[0].folder, *only("kv_share"))
    found.one("kv_share", "ok", "shared: a session moved to beta")
    assert found.status == 0


def test_all_slots_are_filled(pair: tuple[Node, Node]) -> None:
    found = doctor(pair[0].folder, "--saturate", *only("node"))
    assert len(found.of("saturate", "ok")) == 2, found.text
    found.one("saturate", "ok", "shared: 3 requests at once for 2 slots: all answered")


def test_another_machine_is_looked_at_by_its_address(pair: tuple[Node, Node]) -> None:
    alpha, beta = pair
    found = doctor(alpha.folder, "--url", f"http://127.0.0.42:{beta.port}", *only("node", "config", "files", "ports"))
    found.one("node", "ok", "beta answers at http://127.0.0.42")
    assert not found.of("config", "ok")
    found.one("ports", "ok", "the API answers at 127.0.0.42")


def test_an_address_without_a_node(pair: tuple[Node, Node]) -> None:
    port = free_port("127.0.0.1")
    found = doctor(pair[0].folder, "--url", f"http://127.0.0.1:{port}")
    found.one("node", "problem", "does not answer")
    assert doctor(pair[0].folder, "--url", "nonsense").one("node", "problem", "is no address of a node")


def test_what_keeps_a_node_out_before_it_runs(pair: tuple[Node, Node], tmp_path: Path) -> None:
    """A third machine, whose node does not run yet, with the secret, with another one, and with none."""
    alpha = pair[0]
    (seed,) = [f"127.0.0.42:{one}" for one in _gossip(alpha)]
    config = configuration("127.0.0.43", free_port("127.0.0.43"), [seed, "127.0.0.44:7946"])
    config |= {"node": {"name": "third", "state_dir": str(tmp_path / "state")}, "api": {"port": pair[1].port}}
    (tmp_path / "viiwork.yaml").write_text(json.dumps(config))

    fits = doctor(tmp_path, *only("mesh"))
    fits.one("mesh", "ok", f"a node at {seed} would let this node in")
    fits.one("mesh", "warning", "a node at 127.0.0.44:7946 was seen by seeds, and no node's API answers there")
    other = doctor(tmp_path, *only("mesh"), environ={"VIIWORK_MESH_SECRET": OTHER_SECRET})
    other.one("mesh", "problem", f"a node at {seed} does not let this node in: other secret")
    assert OTHER_SECRET not in other.text
    none = doctor(tmp_path, *only("mesh"), environ={"VIIWORK_MESH_SECRET": ""})
    none.one("mesh", "problem", "VIIWORK_MESH_SECRET is not set")
    config["mesh"]["open"] = True
    (tmp_path / "viiwork.yaml").write_text(json.dumps(config))
    opened = doctor(tmp_path, *only("mesh"), environ={"VIIWORK_MESH_SECRET": ""})
    opened.one("mesh", "ok", "the mesh is open")
    opened.one("mesh", "problem", "mesh mode mismatch")


def _gossip(node: Node) -> list[int]:
    config = json.loads((node.folder / "viiwork.yaml").read_text())
    return [int(seed.rpartition(":")[2]) for seed in config["mesh"]["seeds"]]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A node without a mesh, whose engines a test tells what to say."""
    models = [model("m", parallel=1), model("cut", "fake", fake={"cut_after": 1})]
    config = {"models": models, "routing": {"queue_timeout": "0.2s", "queue_max": 0, "forward_retry": 0}}
    with started("alone", tmp_path_factory.mktemp("alone") / "alone", config) as node:
        yield node


def test_an_engine_that_refuses(alone: Node) -> None:
    alone.engine("m").refuse(400, 400)
    found = doctor(alone.folder, *only("models"))
    found.one("models", "problem", "m on alone refuses: told to refuse (status 400)")


def test_a_model_of_embeddings(alone: Node) -> None:
    alone.engine("m").refuse(400)
    doctor(alone.folder, *only("models")).one("models", "ok", "m on alone answers with embeddings, and to no chat")


def test_an_engine_that_stays_silent(alone: Node) -> None:
    alone.engine("m").mute(1)
    found = doctor(alone.folder, "--timeout", "1", *only("models"))
    found.one("models", "problem", "m on alone gives no answer")
    until(lambda: alone.idle("m"), "its slot comes free")


def test_more_than_may_wait(alone: Node) -> None:
    found = doctor(alone.folder, *only("saturate"))
    told = [*found.of("saturate", "ok"), *found.of("saturate", "warning")]
    assert len(told) == 2, found.text
    assert all("requests at once for" in one for one in told)


def test_an_engine_that_fails_when_it_is_filled(alone: Node) -> None:
    alone.engine("m").refuse(500, 500, 500, 500)
    found = doctor(alone.folder, *only("saturate"))
    found.one("saturate", "problem", "m: 2 requests at once for 1 slots: one was answered 5")
    alone.engine("m").refuse()


def test_without_a_mesh(alone: Node) -> None:
    found = doctor(alone.folder, *only("mesh", "ports", "kv_share"))
    found.one("mesh", "ok", "on its own")
    found.one("ports", "ok", f"the API answers at http://127.0.0.1:{alone.port}")


def test_a_node_that_was_killed(tmp_path: Path) -> None:
    config: dict[str, Any] = {"models": []}
    with started("gone", tmp_path / "gone", config) as node:
        node.process.kill()
        node.process.wait()
        found = doctor(node.folder)
    found.one("node", "warning", "does not answer")
    found.one("mesh", "ok", "on its own")


def test_nothing_but_what_needs_a_node(tmp_path: Path) -> None:
    (tmp_path / "viiwork.yaml").write_text(
        json.dumps({"node": {"state_dir": str(tmp_path / "s")}, "mesh": {"network": "none"}})
    )
    found = doctor(tmp_path, *only("models"))
    found.one("node", "ok", "nothing of that can be looked at while no node runs")

"""Measure a mesh of five nodes, on five machines and a switch: python -m bench.mesh [--quick].

The machines are network namespaces, where such can be made. On loopback there is no cable to pull: heal_s is null then.
Prints what it finds, and as its last line RESULT with the figures as JSON. docs/mesh.md says what they mean.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from bench import crowd, scenes
from bench.decision import decision_ms
from bench.engines import fake_model
from bench.lan import Lan, Machine, NoLan, become_root, lan, loopback
from bench.nodes import Mesh, Node, until

ENTRY = "node-1"
MODEL = "m"
NODES = 5
HOSTS = 50
LOADING_S = 3.0


@dataclass(frozen=True)
class Size:
    """How much is measured."""

    idle_s: float
    joins: int
    kills: int
    heals: int
    decisions: int


FULL = Size(idle_s=60.0, joins=5, kills=3, heals=3, decisions=2000)
QUICK = Size(idle_s=3.0, joins=1, kills=1, heals=1, decisions=300)


@dataclass
class Field:
    """Five nodes that know each other. All but the first have the model; what comes, enters at the first."""

    network: Lan | None
    machines: tuple[Machine, ...]
    """One more than there are nodes: for those that come later."""

    mesh: Mesh
    port: int
    """Of the first node's gossip."""

    nodes: list[Node] = field(default_factory=list)

    @property
    def seeds(self) -> list[str]:
        return [f"{self.machines[0].address}:{self.port}"]

    @contextmanager
    def newcomer(self, number: int, name: str, model: str, loading_s: float = 0.0) -> Iterator[Node]:
        """A node on the machine of that number, with one model."""
        machine = self.machines[number]
        with (
            fake_model(machine, model, slots=4, loading_s=loading_s) as entry,
            self.mesh.node(machine, name, port=machine.free_port(), seeds=self.seeds, models=[entry]) as node,
        ):
            yield node

    def complete(self) -> bool:
        """Whether every node knows all others."""
        names = {node.name for node in self.nodes}
        return all(node.members() == names - {node.name} for node in self.nodes)


def tell(line: str) -> None:
    """To whoever watches, at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


@contextmanager
def five_nodes(folder: Path) -> Iterator[Field]:
    """All of them, with healthy backends."""
    with ExitStack() as stack:
        try:
            network = stack.enter_context(lan(NODES + 1))
            machines = network.machines
            tell(f"{NODES} nodes on machines of their own (network namespaces)")
        except NoLan as error:
            network, machines = None, loopback(NODES + 1)
            tell(f"{NODES} nodes on loopback, since {error}")
        made = Field(network, machines, Mesh(folder), machines[0].free_port())
        entry = made.mesh.node(machines[0], ENTRY, port=made.port, seeds=[], models=[])
        made.nodes.append(stack.enter_context(entry))
        for number in range(1, NODES):
            made.nodes.append(stack.enter_context(made.newcomer(number, f"node-{number + 1}", MODEL)))
        for node in made.nodes[1:]:
            until(node.healthy, f"{node.name} is healthy: {node.said()}")
        until(made.complete, "all five know each other")
        yield made


def measure(made: Field, size: Size) -> dict[str, float | None]:
    """Every figure that needs the five nodes."""
    tell(f"the five rest for {size.idle_s:g} s")
    rests = scenes.rest(made.nodes, size.idle_s)
    tell(f"  percent of a core: {_list(r.cpu for r in rests)}; MiB: {_list(r.rss_mb for r in rests)}")
    joins = []
    for number in range(size.joins):
        # Long enough to be in the mesh by then, as with any real engine, and each at another time between two polls.
        loading_s = LOADING_S + number / size.joins
        with made.newcomer(NODES, f"late-{number}", f"late-{number}", loading_s) as node:
            joins.append(scenes.join(made.nodes[0], node, f"late-{number}"))
    tell(f"healthy on a new node -> answered through another one, s: {_list(joins)}")
    heals = _heals(made, size)
    kills = []
    for victim in list(reversed(made.nodes))[: size.kills]:
        kill = scenes.kill(made.nodes[0], victim, MODEL)
        tell(f"  {victim.name} was killed under load: {kill}")
        kills.append(kill.route_s)
        made.nodes.remove(victim)
    return {
        "join_s": round(median(joins), 3),
        "kill_route_s": round(median(kills), 3),
        "heal_s": round(median(heals), 3) if heals else None,
        "idle_cpu": round(median(r.cpu for r in rests), 2),
        "rss_mb": round(median(r.rss_mb for r in rests), 1),
    }


def _heals(made: Field, size: Size) -> list[float]:
    if made.network is None:
        tell("there is no cable to pull on loopback: heal_s is not measured")
        return []
    found = []
    for _ in range(size.heals):
        split = scenes.split(made.network, made.nodes, others=2)
        tell(f"  3 and 2 cut apart: all knew after {split.known_s:.1f} s; together again {split.heal_s:.2f} s later")
        found.append(split.heal_s)
    return found


def _list(values: Iterator[float] | list[float]) -> str:
    return ", ".join(f"{value:.2f}" for value in values)


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="bench.mesh", description="Measure a mesh of five nodes.")
    parser.add_argument("--quick", action="store_true", help="under two minutes, and less to be trusted")
    size = QUICK if parser.parse_args().quick else FULL
    become_root()
    with tempfile.TemporaryDirectory(prefix="viiwork-bench-") as name:
        with five_nodes(Path(name)) as made:
            told = measure(made, size)
        told["decision_ms_50"] = round(decision_ms(HOSTS, size.decisions), 3)
        cost = crowd.cost(Path(name) / "crowd", HOSTS, seconds=min(20.0, size.idle_s))
    tell(f"a node in a mesh of {HOSTS} simulated members: {cost}")
    tell(f"RESULT {json.dumps(told)}")


if __name__ == "__main__":
    main()

"""Measure caches that move between two nodes: python -m bench.kv [--quick] [--transfers].

Two nodes on 127.0.0.1 and 127.0.0.2 serve SmolLM2; a conversation of 3,000 tokens changes the host. Then a replica of
1 GiB goes over the loopback, beside file -> socket -> file + fsync on the same disk; the rest comes from the simulator.
Prints what it finds, and as its last line RESULT with the figures as JSON. docs/performance.md says what they mean.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import httpx

from bench.lan import loopback
from bench.mesh import tell
from bench.nodes import Failed, Mesh, Node, until
from bench.programs import free_port
from demo.smollm2 import check_engine, model_path
from viiwork_core import NoOptions
from viiwork_core.builtin.priced import Fastest
from viiwork_core.kvshare.arrivals import read_header
from viiwork_core.kvshare.sealing import ReplicaHeader
from viiwork_core.security.secret import MeshSecret, SessionKeys
from viiwork_core.simulation.figures import figures
from viiwork_core.simulation.run import simulate
from viiwork_core.simulation.scenario import Names, load
from viiwork_core.testing.tiny_model import WORDS

MODEL = "smollm2"
FIRST, SECOND = "node-1", "node-2"
OPENING, GROWTH = 2900, 80
"""Words of a conversation's first question, and of one that makes it 3 % longer; most are one token."""

SIMULATED = {
    "sim_warm_none": "two-5090-none",
    "sim_warm_1gbe": "two-5090",
    "sim_warm_10gbe": "two-5090-10gbe",
}
"""Fields that the simulator gives, and their scenarios."""


@dataclass(frozen=True)
class Size:
    """How much is measured."""

    conversations: int
    transfers: int
    mib: int


FULL = Size(conversations=3, transfers=7, mib=1024)
QUICK = Size(conversations=1, transfers=1, mib=128)


@dataclass(frozen=True)
class Answer:
    """One turn's."""

    text: str
    first_s: float
    """Seconds to the first words."""

    cached: float
    """Share of the prompt that was not read again."""


@dataclass
class Pair:
    """Two nodes that hand each other caches."""

    mesh: Mesh
    first: Node
    second: Node

    def ask(self, messages: list[dict[str, str]], *, on: str, session: str | None, **more: object) -> Answer:
        """A turn that enters at the first node, streamed. Raises Failed."""
        body = {"model": MODEL, "messages": messages, "max_tokens": 24, "temperature": 0, "stream": True}
        body |= {"stream_options": {"include_usage": True}, **more}
        url = f"http://{self.first.machine.address}:{self.first.port}/v1/chat/completions"
        headers = {"X-Session-Affinity": session} if session else {}
        began, first, text, usage = time.monotonic(), 0.0, "", dict[str, Any]()
        with httpx.stream("POST", url, params={"host": on}, json=body, headers=headers, timeout=300) as answer:
            for line in answer.iter_lines():
                if not line.startswith("data: {"):
                    continue
                event = json.loads(line[6:])
                words = "".join(choice["delta"].get("content") or "" for choice in event.get("choices", ()))
                if words and not text:
                    first = time.monotonic() - began
                text, usage = text + words, event.get("usage") or usage
        if not text or not usage:
            raise Failed(f"{on} did not answer: {answer.status_code}")
        return Answer(text, first, usage["prompt_tokens_details"]["cached_tokens"] / usage["prompt_tokens"])

    def arrived(self, session: str, turn: int) -> ReplicaHeader:
        """Of a turn's cache at the second node, waited for."""
        keys = MeshSecret.from_bytes(base64.b64decode(self.mesh.secret))
        key = SessionKeys(keys, mesh="default").session_key(session)

        def found() -> ReplicaHeader | None:
            for file in self._store.glob("*.json"):
                with suppress(FileNotFoundError):  # a newer turn has just taken its place
                    header = read_header(file)
                    if (header.session, header.turn) == (key, turn):
                        return header
            return None

        return until(found, f"turn {turn} of {session} is at {SECOND}: {self.first.said()}", within=120)

    def sent(self, header: ReplicaHeader) -> int:
        """Bytes that it took to send that turn's cache."""

        def told() -> int | None:
            lines = (self.first.folder / "log").read_text(errors="replace").splitlines()
            told = [json.loads(line) for line in lines if '"event": "kv sent"' in line]
            sizes = [one["bytes"] for one in told if (one["session"], one["turn"]) == (header.session, header.turn)]
            return sizes[0] if sizes else None

        return until(told, "the first node says what it sent")

    @property
    def _store(self) -> Path:
        return self.second.folder / "state" / "kv" / "replicas"


@contextmanager
def pair(folder: Path) -> Iterator[Pair]:
    """Both nodes, once caches go from the first to the second."""
    one, two = loopback(2)
    mesh, port = Mesh(folder), one.free_port()
    share = {"group": "pair", "min_tokens": 100}
    model = {"name": MODEL, "engine": "llamacpp", "path": str(model_path()), "context": 4096, "parallel": 2}
    # One thread: several that wait for each other crawl where other programs want the cores as well.
    models = [{**model, "kv_share": share, "llamacpp": {"threads": 1}}]
    with ExitStack() as stack:
        first = stack.enter_context(mesh.node(one, FIRST, port=port, seeds=[], models=models))
        seeds = [f"{one.address}:{port}"]
        second = stack.enter_context(mesh.node(two, SECOND, port=two.free_port(), seeds=seeds, models=models))
        made = Pair(mesh, first, second)
        for node in (first, second):
            until(node.healthy, f"{node.name} is healthy: {node.said()}", within=180)
        until(lambda: _shares(made), f"{FIRST} sends caches: {first.said()}", within=120, every=0.5)
        yield made


def _shares(made: Pair) -> bool:
    made.ask([user(words(150, "ready"))], on=FIRST, session="ready", max_tokens=4)
    return '"event": "kv sent"' in (made.first.folder / "log").read_text(errors="replace")


def user(text: str) -> dict[str, str]:
    """A client's message."""
    return {"role": "user", "content": text}


def words(count: int, seed: str) -> str:
    """Text that no other seed's begins like."""
    return " ".join(random.Random(seed).choices(WORDS, k=count))  # noqa: S311  # keeps no secret


@dataclass
class Found:
    """What the rounds have shown."""

    switch_vs_cold: list[float] = field(default_factory=list)
    delta_over_share: list[float] = field(default_factory=list)
    text_equal: list[bool] = field(default_factory=list)


def switch(made: Pair, number: int, found: Found) -> None:
    """A conversation of two turns at the first node, the third at the second; beside it one that says the same and
    stays, which tells what the first node would have said."""
    messages: list[dict[str, str]] = []
    headers: list[ReplicaHeader] = []
    for turn, size in ((1, OPENING), (2, GROWTH)):
        messages.append(user(words(size, f"{number} {turn}")))
        answer = made.ask(messages, on=FIRST, session=f"moving-{number}", max_tokens=8)
        made.ask(messages, on=FIRST, session=f"staying-{number}", max_tokens=8)
        messages.append({"role": "assistant", "content": answer.text})
        headers.append(made.arrived(f"moving-{number}", turn))
        made.arrived(f"staying-{number}", turn)
    before, header = headers
    share, part = (header.tokens - before.tokens) / header.tokens, made.sent(header) / header.length
    messages.append(user("And what came after that?"))
    moved = made.ask(messages, on=SECOND, session=f"moving-{number}")
    stayed = made.ask(messages, on=FIRST, session=f"staying-{number}")
    cold = made.ask(messages, on=SECOND, session=None, cache_prompt=False)
    found.switch_vs_cold.append(moved.first_s / cold.first_s)
    found.delta_over_share.append(part / share)
    found.text_equal.append(moved.text == stayed.text)
    tell(f"  {header.tokens} tokens, {header.length / 1e6:.0f} MB; {share:.1%} new, {part:.1%} of the file sent")
    tell(f"  first words: moved {moved.first_s:.2f} s ({moved.cached:.0%} reused), cold {cold.first_s:.2f} s")
    tell(f"  the text is {'the same' if found.text_equal[-1] else 'ANOTHER'}")


@dataclass(frozen=True)
class Toll:
    """What one transfer took."""

    seconds: float
    cpu_s: float
    """Seconds of a core, of both ends."""

    extra_mib: float
    """Of the end that took more memory."""

    gap_ms: float
    """How long an end's event loop stood still at most, other programs' turns included; 0: it has none."""

    busy_ms: float
    """How long it was busy with one thing, at most."""


def transfer(file: Path, roles: tuple[str, str]) -> Toll:
    """Send a file from one process to another."""
    with tempfile.TemporaryDirectory(dir=file.parent) as name:
        copy, port = Path(name) / "file", free_port()
        if roles[1] == "send":  # what is sent is the sender's to delete
            copy.hardlink_to(file)
        command = [sys.executable, "-m", "bench.transfers"]
        there = subprocess.Popen(  # noqa: S603
            [*command, roles[0], str(copy), str(port)], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True
        )
        try:
            assert there.stdout is not None
            there.stdout.readline()
            wait_for(port)
            source = copy if roles[1] == "send" else file
            done = subprocess.run(  # noqa: S603
                [*command, roles[1], str(source), str(port)], check=True, stdout=subprocess.PIPE, text=True
            )
            ends = [json.loads(done.stdout), json.loads(there.stdout.readline())]
        finally:
            there.kill()
            there.communicate()
    most = {name: max(end[name] for end in ends) for name in ("extra_mib", "gap_ms", "busy_ms")}
    return Toll(ends[0]["seconds"], sum(end["cpu_s"] for end in ends), **most)


def wait_for(port: int) -> None:
    """Until the route listens; the plain end takes one connection only, and listens when it says so."""
    path = Path("/proc/net/tcp")
    if path.exists():
        until(lambda: f":{port:04X} 00000000:0000 0A" in path.read_text(), f"port {port} listens")
    else:
        time.sleep(1)


def conversations(folder: Path, size: Size) -> dict[str, object]:
    """Conversations that change the host, one after the other."""
    check_engine()
    found = Found()
    with pair(folder) as made:
        for number in range(size.conversations):
            tell(f"conversation {number + 1} of {size.conversations}")
            switch(made, number, found)
    return {
        "switch_vs_cold": round(median(found.switch_vs_cold), 3),
        "text_equal": all(found.text_equal),
        "delta_over_share": round(median(found.delta_over_share), 3),
    }


def transfers(folder: Path, size: Size) -> dict[str, float]:
    """A file of random bytes both ways, in turn."""
    file = folder / "replica"
    with file.open("wb") as out:
        for _ in range(size.mib):
            out.write(os.urandom(1 << 20))
    shares, peaks = [], []
    tell("a replica over the loopback")
    for _ in range(size.transfers):
        plain, sealed = transfer(file, ("take", "give")), transfer(file, ("receive", "send"))
        told = (
            f"{name} {one.seconds:.2f} s ({one.cpu_s:.2f} s of cores)"
            for name, one in (("plain", plain), ("sealed", sealed))
        )
        tell(f"  {size.mib} MiB: {', '.join(told)}, {sealed.extra_mib:.0f} MiB more memory")
        tell(f"    max_loop_gap_ms {sealed.gap_ms:.0f}, {sealed.busy_ms:.0f} of them on a core")
        shares.append(plain.seconds / sealed.seconds)
        peaks.append(sealed.extra_mib)
    return {"transfer_vs_socket": round(median(shares), 3), "peak_extra_mib": round(max(peaks), 1)}


def simulated(scenario: str) -> float:
    """Percent of the changes of host in a scenario after which 90 % of the prompt is reused, with `fastest`."""
    found = figures(simulate(load(scenario), lambda: Fastest(NoOptions()), Names.HEADER))
    tell(f"simulated {scenario}: {found.switched} changes of host, {found.switched_warm:.1f} % of them warm")
    return round(found.switched_warm, 1)


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="bench.kv", description="Measure caches that move between two nodes.")
    parser.add_argument("--quick", action="store_true", help="a minute or two, and less to be trusted")
    parser.add_argument("--transfers", action="store_true", help="only the file that is sent as a replica is")
    asked = parser.parse_args()
    size = QUICK if asked.quick else FULL
    told: dict[str, object] = {}
    with tempfile.TemporaryDirectory(prefix="viiwork-bench-", dir=os.environ.get("BENCH_DIR")) as name:
        if not asked.transfers:
            told |= conversations(Path(name), size)
        told |= transfers(Path(name), size)
    if not asked.transfers:
        told |= {name: simulated(scenario) for name, scenario in SIMULATED.items()}
    tell(f"RESULT {json.dumps(told)}")


if __name__ == "__main__":
    main()

"""Two nodes that become one endpoint, and what remains when one of them is killed: what `make demo` shows.

    python -m demo.two_nodes

Each node runs a llama-server with the same small model. They are two machines on a cable, which are network namespaces,
or, where such cannot be made, two addresses of this machine. It ends by itself, and leaves nothing behind.
"""

from __future__ import annotations

import itertools
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType

import psutil

from bench.lan import Machine, NoLan, become_root, lan, loopback
from bench.nodes import Failed, Mesh, Node, Reply, until
from demo.smollm2 import check_engine, model_path

FIRST, SECOND = "attic", "cellar"
MODEL = "smollm2"
AT_ONCE = 4
"""More than one node has slots."""

AFTERWARDS = 8
MOST = 60
"""Requests in which the second node must have answered some."""

_ENDS = (signal.SIGINT, signal.SIGTERM)
_QUESTIONS = ("Name three birds.", "Name three rivers.", "Name three trees.", "Name three colours.")


def tell(line: str) -> None:
    """To whoever watches, at once."""
    print(line, flush=True)


@contextmanager
def places() -> Iterator[Sequence[Machine]]:
    """Two machines."""
    with ExitStack() as stack:
        try:
            machines = stack.enter_context(lan(2)).machines
            tell("Two machines on a cable (network namespaces):")
        except NoLan as error:
            machines = loopback(2)
            tell(f"One machine in two roles, since {error}:")
        tell(f"  {FIRST} at {machines[0].address}, {SECOND} at {machines[1].address}")
        yield machines


@contextmanager
def two_nodes(machines: Sequence[Machine], folder: Path) -> Iterator[tuple[Node, Node]]:
    """Both nodes, each on its way up with one slot for the same model."""
    model = {
        "name": MODEL,
        "engine": "llamacpp",
        "path": str(model_path()),
        "context": 2048,
        "parallel": 1,
        "llamacpp": {"threads": 1},
    }
    mesh = Mesh(folder)
    with ExitStack() as stack:
        first_port = machines[0].free_port()
        first = stack.enter_context(mesh.node(machines[0], FIRST, port=first_port, seeds=[], models=[model]))
        seeds = [f"{machines[0].address}:{first_port}"]
        port = machines[1].free_port()
        second = stack.enter_context(mesh.node(machines[1], SECOND, port=port, seeds=seeds, models=[model]))
        yield first, second


def come_up(first: Node, second: Node) -> None:
    """Both models are loaded, and the nodes have found each other."""
    began = time.monotonic()
    for node in (first, second):
        until(node.healthy, f"{node.name} has loaded its model; its log ends with:\n{node.said()}", within=120)
        tell(f"  {node.name}: its llama-server has loaded {MODEL} ({time.monotonic() - began:.1f} s)")
    until(lambda: first.members() == {SECOND} and second.members() == {FIRST}, f"{FIRST} and {SECOND} have met")
    tell(f"  {FIRST} and {SECOND} know each other; {SECOND} was told one address, {FIRST} none")


class Client:
    """Asks, and keeps count of who answered."""

    def __init__(self, before: Client | None = None) -> None:
        self.answers: Counter[str] = Counter()
        self._numbers: Iterator[int] = before._numbers if before else itertools.count(1)

    def ask(self, entry: Node, words: str) -> None:
        """One question to a node. Raises Failed when no right answer comes."""
        number, began = next(self._numbers), time.monotonic()
        reply = entry.chat(MODEL, words, max_tokens=16, temperature=0)
        if reply is None or reply.status != 200:
            raise Failed(f"{entry.name} answered request {number} with {_told(reply)}")
        self.answers[reply.node] += 1
        tell(f"  request {number} to {entry.name}: answered by {reply.node} in {time.monotonic() - began:.1f} s")

    def ask_until(self, entry: Node, helper: str) -> None:
        """A few questions at a time, until another node has answered some. Raises Failed."""
        with ThreadPoolExecutor(AT_ONCE) as threads:
            while self.answers[helper] < 2:
                if self.answers.total() >= MOST:
                    raise Failed(f"{helper} answered {self.answers[helper]} of {MOST} requests to {entry.name}")
                list(threads.map(lambda words: self.ask(entry, words), _QUESTIONS))


def _told(reply: Reply | None) -> str:
    return "nothing" if reply is None else f"{reply.status}: {reply.body[:300].decode(errors='replace')}"


def show(first: Node, second: Node) -> str:
    """All of it; what was shown, in a sentence. Raises Failed."""
    come_up(first, second)
    tell(f"Requests to {FIRST}, {AT_ONCE} at a time; each node has one slot:")
    together = Client()
    together.ask_until(first, SECOND)
    tell(f"{SECOND} is killed (kill -9), and {FIRST} is asked on:")
    engines = psutil.Process(second.process.pid).children(recursive=True)
    second.kill()
    alone = Client(together)
    for words in itertools.islice(itertools.cycle(_QUESTIONS), AFTERWARDS):
        alone.ask(first, words)
    until(lambda: first.members() == set(), f"{FIRST} misses {SECOND}")
    _, alive = psutil.wait_procs(engines, timeout=10)
    if alive:
        raise Failed(f"{SECOND} left {len(alive)} processes behind")
    tell(f"  {FIRST} knows that {SECOND} is gone, and the llama-server of {SECOND} has ended with it")
    by, count = together.answers[SECOND], together.answers.total()
    return (
        f"Shown: two nodes found each other and answered as one, {SECOND} {by} of the {count} requests that {FIRST} "
        f"was asked; when {SECOND} was killed, {FIRST} answered all of the next {alone.answers[FIRST]}."
    )


def main() -> None:
    """Exit with 0 and a sentence of what was shown, else with 1 and one of what went wrong."""
    become_root()
    for number in _ENDS:
        signal.signal(number, _interrupted)
    check_engine()
    try:
        with (
            tempfile.TemporaryDirectory(prefix="viiwork-demo-") as folder,
            places() as machines,
            two_nodes(machines, Path(folder)) as nodes,
        ):
            shown = show(*nodes)
    except Failed as error:
        sys.exit(f"Not shown: {error}")
    except KeyboardInterrupt:
        sys.exit("Interrupted; both nodes and their engines have ended.")
    tell(shown)


def _interrupted(_number: int, _frame: FrameType | None) -> None:
    for number in _ENDS:
        signal.signal(number, signal.SIG_IGN)  # what follows is short, and ends what was started
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()

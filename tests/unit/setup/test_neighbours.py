"""Who is nearby: discoveries of the test's own, and real HTTP servers on several addresses of loopback."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from time import time
from typing import Any

import pytest

from viiwork_core.contracts.discovery import Card, Discovery, Sighting
from viiwork_core.contracts.doctor import Level
from viiwork_core.errors import DiscoveryFailed, ViiworkError
from viiwork_core.registry.registry import Loaded, LoadRecord, Offer, Registry
from viiwork_core.setup.neighbours import MAX_ANSWER, Neighbour, Surroundings, look_around, own_addresses
from viiwork_core.setup.preflight import clocks


def seeing(*hosts: str) -> type[Discovery]:
    """A discovery that sees gossip at these."""

    class Acme(Discovery):
        name = "acme"
        networks = frozenset({"lan"})

        async def announce(self, card: Card) -> None:
            raise AssertionError("who only looks around announces nothing")

        async def sightings(self) -> AsyncIterator[Sighting]:
            for host in hosts:
                yield Sighting(f"{host}:7946", "acme")

    return Acme


class Blind(Discovery):
    name = "blind"
    networks = frozenset({"tailnet"})

    async def announce(self, card: Card) -> None:
        raise AssertionError("who only looks around announces nothing")

    async def sightings(self) -> AsyncIterator[Sighting]:
        raise DiscoveryFailed("no daemon runs", remedy="start it")
        yield Sighting("", "")


def registry(*classes: type[Discovery]) -> Registry:
    offers = tuple(Offer("discovery", cls.name, cls) for cls in classes)
    provides = tuple(("discovery", cls.name) for cls in classes)
    return Registry([Loaded(LoadRecord("viiwork-acme", "1", "acme", "loaded", provides=provides), offers)])


class Scene:
    """Servers on addresses of loopback, all on one port."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self.port = 0

    def answers(self, host: str, body: bytes, status: int = 200, date: str | None = None) -> None:
        self.port = self._stack.enter_context(served(host, self.port, body, status, date))

    def look(self, *classes: type[Discovery], folder: Path) -> Surroundings:
        return asyncio.run(look_around(registry(*classes), folder, port=self.port))


@contextmanager
def served(host: str, port: int, body: bytes, status: int, date: str | None) -> Iterator[int]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response_only(status if self.path == "/v1/cluster" else 404)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Date", date or formatdate(usegmt=True))
            if 300 <= status < 400:
                self.send_header("Location", f"http://{host}:{self.server.server_address[1]}/elsewhere")
            self.end_headers()
            try:
                self.wfile.write(body)
            except ConnectionError:
                return

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # the library's
            return

    with ThreadingHTTPServer((host, port), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def scene() -> Iterator[Scene]:
    with ExitStack() as stack:
        yield Scene(stack)


def cluster(node: str, **more: object) -> bytes:
    told: dict[str, object] = {"view": node, "mesh": "secured", "models": ["m", "n"], "members": [{"node": node}]}
    return json.dumps(told | more).encode()


def test_who_answers_is_told_by_name(scene: Scene, tmp_path: Path) -> None:
    scene.answers("127.0.0.1", cluster("cellar"))
    scene.answers("127.0.0.2", cluster("attic", mesh="open", models=["m"], members=[{"node": "a"}, {"node": "b"}]))
    seen = scene.look(seeing("127.0.0.1", "127.0.0.2", "127.0.0.3"), folder=tmp_path)
    assert [one.text() for one in seen.neighbours] == [
        "attic (127.0.0.2:7946): open mesh of 2, 1 model",
        "cellar (127.0.0.1:7946): secured mesh of 1, 2 models",
    ]
    assert seen.silent == {}


def test_a_discovery_that_cannot_look_says_why_and_harms_no_other(scene: Scene, tmp_path: Path) -> None:
    scene.answers("127.0.0.1", cluster("cellar"))
    seen = scene.look(Blind, seeing("127.0.0.1"), folder=tmp_path)
    assert [one.node for one in seen.neighbours] == ["cellar"]
    assert seen.silent == {"blind": "no daemon runs; start it"}


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 200),
        (b"<html>", 200),
        (b"[" * 100_000, 200),
        (b"{}", 200),
        (cluster("x" * 300), 200),
        (cluster("a", mesh="other"), 200),
        (cluster("a", models="m"), 200),
        (cluster("a", members=[{"node": "n"}] * 5000), 200),
        (cluster("a") + b" " * (MAX_ANSWER + 1), 200),
        (cluster("a"), 500),
        (cluster("a"), 302),
    ],
)
def test_what_is_no_node_is_nobody(scene: Scene, tmp_path: Path, body: bytes, status: int) -> None:
    scene.answers("127.0.0.1", body, status)
    assert scene.look(seeing("127.0.0.1"), folder=tmp_path).neighbours == ()


def test_names_that_a_terminal_would_obey_are_cleaned(scene: Scene, tmp_path: Path) -> None:
    scene.answers("127.0.0.1", cluster("\x1b[31mred", models=["\x07\n"]))
    (one,) = scene.look(seeing("127.0.0.1"), folder=tmp_path).neighbours
    assert one.text().isprintable()
    assert one.models == ("  ",)


def test_a_clock_that_is_off_is_told(scene: Scene, tmp_path: Path) -> None:
    scene.answers("127.0.0.1", cluster("cellar"), date=formatdate(time() + 600, usegmt=True))
    seen = scene.look(seeing("127.0.0.1"), folder=tmp_path)
    (finding,) = clocks(seen.neighbours)
    assert finding.level is Level.PROBLEM
    assert "ahead" in finding.what


@pytest.mark.parametrize(
    ("skew", "level", "said"),
    [
        (0.0, Level.OK, "the clock agrees with 1 node nearby"),
        (-30.0, Level.WARNING, "the clock of a is 30 s behind"),
        (200.0, Level.PROBLEM, "the clock of a is 200 s ahead: in a secured mesh it refuses what this machine signs"),
    ],
)
def test_clocks(skew: float, level: Level, said: str) -> None:
    (finding,) = clocks([Neighbour("a", "192.0.2.1:7946", "acme", "secured", (), 1, skew)])
    assert (finding.level, finding.what) == (level, said)


def test_who_tells_no_time_is_not_judged() -> None:
    assert clocks([Neighbour("a", "192.0.2.1:7946", "acme", "secured", (), 1)]) == []


def test_a_node_of_this_machine_is_no_neighbour(scene: Scene, tmp_path: Path) -> None:
    """It runs while the machine is set up anew."""
    for host in ("127.0.0.2", "127.0.0.3"):
        scene.answers(host, cluster(host))
    look = look_around(registry(seeing("127.0.0.2", "127.0.0.3")), tmp_path, port=scene.port, own={"127.0.0.2"})
    assert [(one.node, one.host) for one in asyncio.run(look).neighbours] == [("127.0.0.3", "127.0.0.3")]


class Placed(Blind):
    name = "placed"

    async def own_address(self) -> str | None:
        return "100.64.0.7"


class Away(Blind):
    name = "away"

    async def own_address(self) -> str | None:
        raise DiscoveryFailed("no daemon runs", remedy="start it")


class Broken(Blind):
    name = "broken"

    async def own_address(self) -> str | None:
        raise RuntimeError("no idea")


def test_each_discovery_says_whether_it_works_here(tmp_path: Path) -> None:
    told = asyncio.run(own_addresses(registry(Blind, Placed, Away, Broken), tmp_path))
    assert (told["blind"], told["placed"]) == (None, "100.64.0.7")
    away = told["away"]
    assert isinstance(away, ViiworkError)
    assert (away.message, away.remedy) == ("no daemon runs", "start it")
    assert isinstance(told["broken"], ViiworkError)


def test_who_cannot_look_is_not_asked(tmp_path: Path) -> None:
    assert asyncio.run(look_around(registry(Blind), tmp_path)).silent == {"blind": "no daemon runs; start it"}
    assert asyncio.run(look_around(registry(Blind), tmp_path, without={"blind"})).silent == {}

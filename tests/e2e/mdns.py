"""The source of viiwork-discovery-mdns by itself, on a machine of a test."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from hosts import Host
from nodes import until

from viiwork_core import Card, Sighting
from viiwork_core.testing.servers import kit_context
from viiwork_discovery_mdns.discovery import MdnsDiscovery
from viiwork_discovery_mdns.options import MdnsOptions

T = TypeVar("T")


def on(host: Host, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run it on that machine, in a thread: a namespace is a thread's."""

    def run() -> T:
        with host.inside():
            return asyncio.run(work())

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(run).result()


def source(folder: Path, *, interface: str = "") -> MdnsDiscovery:
    return MdnsDiscovery(MdnsOptions(interface=interface), kit_context(folder))


async def seen(made: MdnsDiscovery, wanted: Callable[[set[Sighting]], bool]) -> set[Sighting]:
    async with asyncio.timeout(60):
        while True:
            found = {sighting async for sighting in made.sightings()}
            if wanted(found):
                return found
            await asyncio.sleep(0.1)


def card(address: str, name: str = "here") -> Card:
    return Card(name, f"viiwork-{name}", address, "default")


@contextmanager
def beside(host: Host, folder: Path, own: Card) -> Iterator[None]:
    """A node's source on that machine."""
    ready, leave = asyncio.Event(), asyncio.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    async def work() -> None:
        loops.append(asyncio.get_running_loop())
        async with source(folder) as made:
            await made.announce(own)
            ready.set()
            await leave.wait()

    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(on, host, work)
        until(ready.is_set, "it is being announced")
        try:
            yield
        finally:
            loops[0].call_soon_threadsafe(leave.set)
            running.result()

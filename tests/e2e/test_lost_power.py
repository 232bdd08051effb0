"""Who waits for an answer of a machine that has gone without a word waits for seconds, and not for ever."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator

import pytest
from hosts import Hosts

from viiwork_core.errors import BackendFailed
from viiwork_core.mesh.links import Links
from viiwork_core.mesh.member import Member
from viiwork_core.mesh.sockets import LOST_S, PROBED_AFTER_S

pytestmark = pytest.mark.slow

LINK = "viiwork0"


@pytest.fixture
def silent(cable: Hosts) -> Iterator[tuple[Member, threading.Event]]:
    """A server on the second host that reads a request and never answers; set once it has one."""
    with cable.second.inside(), socket.create_server((cable.second.address, 0)) as server:
        asked, held = threading.Event(), list[socket.socket]()

        def serve() -> None:
            connection, _ = server.accept()
            held.append(connection)
            connection.recv(1 << 16)
            asked.set()

        thread = threading.Thread(target=serve)
        thread.start()
        yield Member("silent", "1", cable.second.address, server.getsockname()[1]), asked
        thread.join()
        held[0].close()


def test_a_machine_that_loses_its_power_breaks_the_wait_for_its_answer(
    cable: Hosts, silent: tuple[Member, threading.Event]
) -> None:
    member, asked = silent

    async def scene() -> None:
        async with Links(node="first", signer=None) as links, asyncio.timeout(3 * (LOST_S + PROBED_AFTER_S)):
            waiting = asyncio.create_task(_asked(links, member))
            await asyncio.to_thread(asked.wait)
            cable.second.run("ip", "link", "set", LINK, "down")
            with pytest.raises(BackendFailed, match="timed out"):
                await waiting

    with cable.first.inside():
        asyncio.run(scene())


async def _asked(links: Links, member: Member) -> None:
    async with links.open_post(member, "/v1/x", headers=[], body=b"x"):
        pass

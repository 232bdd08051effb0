"""Asking tailscaled: by its LocalAPI over a socket, and on a Mac by the command where there is no socket."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import anyio
import httpx

from viiwork_core import Context, DiscoveryFailed, EngineRefused
from viiwork_discovery_tailscale.options import DEFAULT_SOCKET

MAC_SOCKET = Path("/var/run/tailscaled.socket")
"""Of the tailscaled that is built from source or comes from Homebrew."""

COMMANDS = ("tailscale", "/Applications/Tailscale.app/Contents/MacOS/Tailscale")

ANSWER_S: Final = 5.0
MAX_BYTES: Final = 64 << 20
"""A machine takes about 1.5 kB."""

_URL = "http://local-tailscaled.sock/localapi/v0/status"

_REMEDY = "install Tailscale and run `tailscale up`, or set mesh.tailscale.socket to the socket of tailscaled"


class Daemon:
    """Knows where to ask. Nothing is kept open in between."""

    def __init__(
        self, socket: Path, context: Context, *, platform: str = sys.platform, fallback: Path = MAC_SOCKET
    ) -> None:
        on_mac = platform == "darwin" and socket == DEFAULT_SOCKET
        self._sockets = (socket, fallback) if on_mac else (socket,)
        self._commands: Sequence[str] = COMMANDS if on_mac else ()
        self._context = context

    async def status(self) -> bytes:
        """The status document. Raises DiscoveryFailed with what each way said."""
        refusals: list[str] = []
        for socket in self._sockets:
            try:
                return await self._by_socket(socket)
            except DiscoveryFailed as error:
                refusals.append(error.message)
        for command in self._commands:
            try:
                return await self._by_command(command)
            except DiscoveryFailed as error:
                refusals.append(error.message)
        raise DiscoveryFailed("; ".join(refusals), remedy=_REMEDY)

    async def _by_socket(self, socket: Path) -> bytes:
        transport = httpx.AsyncHTTPTransport(uds=str(socket))
        try:
            async with httpx.AsyncClient(transport=transport, trust_env=False, timeout=ANSWER_S) as client:
                with anyio.move_on_after(ANSWER_S):
                    return await self._read(client, socket)
        except (httpx.HTTPError, OSError) as error:
            raise DiscoveryFailed(f"{socket}: {_words(error)}") from error
        raise DiscoveryFailed(f"{socket}: no whole answer within {ANSWER_S:g} s")

    async def _read(self, client: httpx.AsyncClient, socket: Path) -> bytes:
        # Uncompressed, so that the limit holds for what arrives.
        async with client.stream("GET", _URL, headers={"Accept-Encoding": "identity"}) as response:
            if response.status_code != 200:
                raise DiscoveryFailed(f"{socket}: answered {response.status_code}")
            body = bytearray()
            async for part in response.aiter_raw():
                body += part
                if len(body) > MAX_BYTES:
                    raise DiscoveryFailed(f"{socket}: the answer is over {MAX_BYTES >> 20} MiB")
            return bytes(body)

    async def _by_command(self, command: str) -> bytes:
        # Without TERM the program of the App Store starts its window instead.
        argv = ["/usr/bin/env", "TERM=dumb", command, "status", "--json"]
        try:
            output = await self._context.run_command(argv)
        except EngineRefused as error:
            raise DiscoveryFailed(f"{command}: {error.message}") from error
        begin, end = output.text.find("{"), output.text.rfind("}")
        if output.returncode or begin < 0 or end < begin:
            said = "".join(filter(str.isprintable, output.text[:200])) or "nothing"
            raise DiscoveryFailed(f"{command}: exit status {output.returncode}, and it said {said!r}")
        # Warnings about versions may come before it and after it.
        return output.text[begin : end + 1].encode()


def _words(error: BaseException) -> str:
    return str(error) or type(error).__name__

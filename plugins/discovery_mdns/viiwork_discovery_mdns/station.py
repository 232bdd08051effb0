"""This machine's place in mDNS: on one interface, it announces this node and hears of others."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from zeroconf import (  # type: ignore[attr-defined]  # DNSService is not in its __all__
    DNSService,
    Error,
    IPVersion,
    NonUniqueNameException,
    RecordUpdate,
    RecordUpdateListener,
    ServiceStateChange,
    Zeroconf,
)
from zeroconf.asyncio import AsyncServiceBrowser, AsyncServiceInfo, AsyncZeroconf

from viiwork_core import Card, DiscoveryFailed, Sighting
from viiwork_discovery_mdns.interfaces import Interface
from viiwork_discovery_mdns.records import SERVICE, contested_instance, instance, same_mesh, sighting_of, text_of

BROWSE_S: Final = 2.0
"""How long the first answers may take."""

MAX_INSTANCES: Final = 256
"""That are kept: whoever is on the network can announce any number."""

RESOLVE_S: Final = 3.0
"""How long the answers about those that were heard of may take, all together."""

_AT_ONCE = 32


class Station(RecordUpdateListener):
    """Open from its construction, on the running event loop, until `close`."""

    def __init__(self, source: str, interface: Interface, card: Card | None) -> None:
        """Raises DiscoveryFailed when mDNS cannot be spoken on the interface."""
        super().__init__()
        self.interface = interface
        self._source, self._card = source, card
        self._zeroconf = _opened(interface)
        self._names: dict[str, None] = {}
        self._answered: set[str] = set()
        self._browser = AsyncServiceBrowser(self._zeroconf.zeroconf, SERVICE, handlers=[self._heard])
        self._listening_from = asyncio.get_running_loop().time()
        self._own: AsyncServiceInfo | None = None
        self._contested = asyncio.Event()
        self._zeroconf.zeroconf.async_add_listener(self, None)
        self._registration = asyncio.create_task(self._register(card)) if card else None

    async def look(self) -> list[Sighting]:
        """Who is there now, as far as they answer. Raises DiscoveryFailed when this node could not be announced."""
        if self._registration is not None and self._registration.done():
            self._registration.result()
        await asyncio.sleep(self._listening_from + BROWSE_S - asyncio.get_running_loop().time())
        return await self._resolve_all()

    async def close(self) -> None:
        """Say goodbye, and close."""
        if self._registration is not None:
            self._registration.cancel()
            await asyncio.gather(self._registration, return_exceptions=True)
        await self._browser.async_cancel()
        with suppress(OSError, Error):  # the interface may be gone, and nobody hears it then
            await self._zeroconf.async_close()

    def async_update_records(self, zc: Zeroconf, now: float, records: list[RecordUpdate]) -> None:
        """zeroconf's: another node under this one's name is heard. Two that ask for it at one time both get it."""
        services = [update.new for update in records if isinstance(update.new, DNSService)]
        if self._own is not None and any(_takes(self._own, service) for service in services):
            self._contested.set()

    def _heard(self, zeroconf: Zeroconf, service_type: str, name: str, state_change: ServiceStateChange) -> None:
        if state_change is ServiceStateChange.Removed:
            self._names.pop(name, None)
        elif len(self._names) < MAX_INSTANCES:
            self._names[name] = None

    async def _register(self, card: Card) -> None:
        """Under the node's name, unless that is taken: then under one that nobody else has, for good."""
        try:
            self._own = _info(card, instance(card.node))
            with suppress(NonUniqueNameException):
                await self._announce(self._own)
                await self._contested.wait()
                # Without a goodbye, which would be for the other one too.
                self._zeroconf.zeroconf.registry.async_remove(self._own)
            self._own = _info(card, contested_instance(card))
            await self._announce(self._own)
        except (Error, OSError) as error:
            raise _refused(self.interface, error) from error

    async def _announce(self, info: AsyncServiceInfo) -> None:
        await (await self._zeroconf.async_register_service(info))

    async def _resolve_all(self) -> list[Sighting]:
        """Those that answer soon. Who has answered before is asked first: names alone are easily made up."""
        at_once = asyncio.Semaphore(_AT_ONCE)
        names = sorted(self._names, key=lambda name: name not in self._answered)
        asked = {name: asyncio.create_task(self._resolve(name, at_once)) for name in names}
        try:
            if asked:
                await asyncio.wait(asked.values(), timeout=RESOLVE_S)
        finally:
            late = [task for task in asked.values() if task.cancel()]
            await asyncio.gather(*late, return_exceptions=True)
        found = {name: task.result() for name, task in asked.items() if not task.cancelled()}
        self._answered = {name for name, sighting in found.items() if sighting is not None}
        return [sighting for sighting in found.values() if sighting is not None]

    async def _resolve(self, name: str, at_once: asyncio.Semaphore) -> Sighting | None:
        async with at_once:
            try:
                info = AsyncServiceInfo(SERVICE, name)
                if not await info.async_request(self._zeroconf.zeroconf, RESOLVE_S * 1000):
                    return None
                text, addresses = info.properties, info.parsed_addresses(IPVersion.All)
            except (Error, ValueError):
                return None  # a name or a record that DNS does not allow
        if not same_mesh(self._card, text):
            return None
        return sighting_of(self._source, self.interface, info.port, addresses, text)


def _info(card: Card, name: str) -> AsyncServiceInfo:
    host, _, port = card.address.rpartition(":")
    return AsyncServiceInfo(
        SERVICE,
        f"{name}.{SERVICE}",
        port=int(port),
        properties=text_of(card),
        # Not the machine's own name: its records belong to whoever answers for it, such as Avahi.
        server=f"{card.node_id}.local.",
        parsed_addresses=[host.strip("[]")],
    )


def _takes(own: AsyncServiceInfo, service: DNSService) -> bool:
    """Whether a record is of another host under the same name; a goodbye is not."""
    return service.key == own.key and service.server_key != own.server_key and service.ttl > 0


def _opened(interface: Interface) -> AsyncZeroconf:
    speak_on = interface.to_speak_on()
    ipv4 = [one for one in speak_on if isinstance(one, str)]
    try:
        return _on(speak_on)
    except (OSError, RuntimeError) as error:
        if not ipv4 or ipv4 == speak_on:
            raise _refused(interface, error) from error
    try:
        # A system may have IPv6 addresses and still refuse a socket for both.
        return _on(ipv4)
    except (OSError, RuntimeError) as error:
        raise _refused(interface, error) from error


def _on(speak_on: Sequence[str | int]) -> AsyncZeroconf:
    return AsyncZeroconf(interfaces=list(speak_on))


def _refused(interface: Interface, error: Exception) -> DiscoveryFailed:
    return DiscoveryFailed(
        f"mDNS cannot be spoken on {interface.name}: {error}",
        remedy="free UDP port 5353 for others to share, or set mesh.mdns.interface to another interface",
    )

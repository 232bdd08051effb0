"""Neighbours: nodes that the installed discoveries see and whose API answers. Nothing is announced, nothing joined.

What they say is untrusted: it is bounded, and cleaned before it is shown.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Final, Literal

import httpx
import msgspec
from msgspec import Meta

from viiwork_core.clock import SystemClock
from viiwork_core.contracts.context import Context
from viiwork_core.contracts.discovery import Discovery, Sighting
from viiwork_core.contracts.options import PluginOptions
from viiwork_core.engines.commands import Commands
from viiwork_core.engines.digest import Digests
from viiwork_core.errors import ViiworkError
from viiwork_core.mesh.greeter import USUAL_PORT
from viiwork_core.observe.events import plain
from viiwork_core.registry.guard import Guard, attempt
from viiwork_core.registry.registry import Registry
from viiwork_core.setup.meeting import finders

LOOK_S: Final = 6.0
"""Of one discovery, opening it included: mDNS hears what answers within two seconds and asks about it for three."""

ASK_S: Final = 2.0
"""Of one API, its whole answer included."""

MAX_HOSTS: Final = 256
AT_ONCE: Final = 32
MAX_ANSWER: Final = 4 << 20
"""Bytes. A member's status has some kilobytes."""

_Name = Annotated[str, Meta(min_length=1, max_length=256)]


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A node nearby."""

    node: str
    address: str
    """Of its gossip, ip:port."""

    source: str
    """The discovery that saw it."""

    mode: Literal["secured", "open", "none"]
    models: tuple[str, ...]
    members: int
    skew_s: float | None = None
    """How far its clock is ahead of this one; None: it does not say. Good to a second."""

    @property
    def host(self) -> str:
        """Its IP address."""
        return _host(self.address)

    def text(self) -> str:
        """For people."""
        models = f"{len(self.models)} {'model' if len(self.models) == 1 else 'models'}"
        return f"{self.node} ({self.address}): {self.mode} mesh of {self.members}, {models}"


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What was seen."""

    neighbours: tuple[Neighbour, ...] = ()
    """By name, each node once."""

    silent: Mapping[str, str] = field(default_factory=dict)
    """By discovery: why it could not look, with the remedy."""


class _Member(msgspec.Struct, frozen=True):
    node: _Name


class _Cluster(msgspec.Struct, frozen=True):
    """What counts of a node's /v1/cluster."""

    view: _Name
    mesh: Literal["secured", "open", "none"]
    models: Annotated[list[_Name], Meta(max_length=4096)]
    members: Annotated[list[_Member], Meta(max_length=4096)]


_decoder = msgspec.json.Decoder(_Cluster)


Addresses = Mapping[str, str | ViiworkError | None]
"""By discovery: this machine's address in its network, why there is none, or None: that is not the discovery's to
say."""


async def own_addresses(registry: Registry, folder: Path) -> Addresses:
    """Ask all installed discoveries whether they can work here; some seconds at most."""
    sources = finders(registry)
    told = await asyncio.gather(*(_own_address(registry.discovery(name), folder) for name in sources))
    return dict(zip(sources, told, strict=True))


async def look_around(
    registry: Registry,
    folder: Path,
    *,
    port: int = USUAL_PORT,
    without: Collection[str] = (),
    own: Collection[str] = (),
) -> Surroundings:
    """Ask all installed discoveries, then those whom they saw; some ten seconds. `folder` is for what they write.

    `port`: of the others' APIs; a sighting tells only where their gossip is. `without`: the discoveries that are not
    asked; `own`: this machine's addresses, where a node of its own may run.
    """
    sources = [name for name in finders(registry) if name not in without]
    looks = [_look(registry.discovery(name), folder) for name in sources]
    seen = await asyncio.gather(*looks, return_exceptions=True)
    silent, sightings = dict[str, str](), list[Sighting]()
    for name, found in zip(sources, seen, strict=True):
        if isinstance(found, ViiworkError):
            silent[name] = f"{found.message}{f'; {found.remedy}' if found.remedy else ''}"
        elif isinstance(found, BaseException):
            raise found
        else:
            sightings += found
    others = [one for one in sightings if _host(one.address) not in own]
    return Surroundings(await _asked(others[:MAX_HOSTS], port), silent)


def _host(address: str) -> str:
    return address.rpartition(":")[0].strip("[]")


async def _own_address(cls: type[Discovery], folder: Path) -> str | ViiworkError | None:
    try:
        source, guard = _made_here(cls, folder)
        found = await guard.call("own_address", LOOK_S, source.own_address)
    except ViiworkError as error:
        return error
    return None if found is None else plain(str(found))


async def _look(cls: type[Discovery], folder: Path) -> list[Sighting]:
    source, guard = _made_here(cls, folder)
    async with AsyncExitStack() as stack:
        await guard.call("open", LOOK_S, source.__aenter__)
        stack.push_async_callback(guard.call, "close", LOOK_S, lambda: source.__aexit__(None, None, None))
        return await guard.call("sightings", LOOK_S, lambda: _collected(source))


def _made_here(cls: type[Discovery], folder: Path) -> tuple[Discovery, Guard]:
    own = folder / cls.name
    own.mkdir(mode=0o700, exist_ok=True)
    context = Context("viiwork-init", own, Commands("init").run, Digests(folder).of)
    source = attempt(f"making the discovery {cls.name}", partial(_made, cls, context))
    return source, Guard(f"discovery {cls.name}", clock=SystemClock())


def _made(cls: type[Discovery], context: Context) -> Discovery:
    options: PluginOptions = cls.Options.model_validate({})
    return cls(options, context)


async def _collected(source: Discovery) -> list[Sighting]:
    found, sightings = list[Sighting](), source.sightings()
    try:
        async for sighting in sightings:
            found.append(sighting)
            if len(found) == MAX_HOSTS:
                break
    finally:
        if isinstance(sightings, AsyncGenerator):
            await sightings.aclose()
    return found


async def _asked(sightings: Sequence[Sighting], port: int) -> tuple[Neighbour, ...]:
    turns = asyncio.Semaphore(AT_ONCE)
    # No proxy: these are neighbours. No redirects: they may point anywhere.
    async with httpx.AsyncClient(trust_env=False, follow_redirects=False, timeout=ASK_S) as client:
        found = await asyncio.gather(*(_ask(client, turns, one, port) for one in sightings))
    by_node = {one.node: one for one in found if one is not None}
    return tuple(by_node[name] for name in sorted(by_node))


async def _ask(client: httpx.AsyncClient, turns: asyncio.Semaphore, sighting: Sighting, port: int) -> Neighbour | None:
    """None: nobody there whose API answers there."""
    host = sighting.address.rpartition(":")[0]
    try:
        async with turns, asyncio.timeout(ASK_S):
            body, date = await _read(client, f"http://{host}:{port}/v1/cluster")
            return _neighbour(sighting, _decoder.decode(body), _skew(date))
    except (httpx.HTTPError, httpx.InvalidURL, OSError, TimeoutError, msgspec.DecodeError, UnicodeDecodeError):
        return None


async def _read(client: httpx.AsyncClient, url: str) -> tuple[bytes, str | None]:
    """The body of a good answer, as far as it is not too long, and its date."""
    body = bytearray()
    async with client.stream("GET", url) as answer:
        answer.raise_for_status()
        async for part in answer.aiter_bytes():
            body += part
            if len(body) > MAX_ANSWER:
                raise httpx.DecodingError("too long", request=answer.request)
        return bytes(body), answer.headers.get("date")


def _neighbour(sighting: Sighting, told: _Cluster, skew_s: float | None) -> Neighbour:
    models = tuple(plain(name) for name in told.models)
    return Neighbour(
        plain(told.view), plain(sighting.address), sighting.source, told.mesh, models, len(told.members), skew_s
    )


def _skew(date: str | None) -> float | None:
    try:
        return None if date is None else round(parsedate_to_datetime(date).timestamp() - time.time())
    except (ValueError, TypeError, OverflowError):
        return None

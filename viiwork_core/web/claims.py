"""Who a request says it comes from: the check of mesh headers at the door.

A request that carries a hop is served here or not at all, proven or not. In a secured mesh an unproven one is answered
401 with the reason. In an open mesh the claim counts if the request comes from an address of that member; otherwise it
is an ordinary client's, and still not forwarded again. Either is told in the log, for each claimed name once a minute.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

import anyio
import structlog

from viiwork_core.clock import Clock, SystemClock
from viiwork_core.errors import Forbidden, Unauthorized
from viiwork_core.mesh.greeting import Caller, Verdict, judge
from viiwork_core.mesh.member import embedded
from viiwork_core.proxy.headers import first
from viiwork_core.proxy.request import LARGE, Scope, target
from viiwork_core.security.signing import AUTH, FORWARDED, NODE, STREAMED, Digest, Signed, Verifier, digest, header_text

QUIET_S: Final = 60.0
MAX_NAMES: Final = 256

_SIGNED: Final = "viiwork.signed"
"""Where a scope keeps that its signature was found good."""

_log = structlog.get_logger("viiwork.mesh")


class Doubts:
    """Tells the log of claims that were not proven: each name once a minute, for the last 256 names."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._told: OrderedDict[str, float] = OrderedDict()

    def tell(self, claimed: str, client: str, reason: str) -> None:
        """`claimed`: the name, as it came."""
        now = self._clock.monotonic()
        name = "".join(filter(str.isprintable, claimed))[:64]
        if now - self._told.get(name, -QUIET_S) < QUIET_S:
            return
        self._told[name] = now
        self._told.move_to_end(name)
        if len(self._told) > MAX_NAMES:
            self._told.popitem(last=False)
        _log.warning("a claim was not proven", claimed=name, address=client, reason=reason)


@dataclass(frozen=True, slots=True)
class Claims:
    """Checks what a request claims about its sender."""

    verifier: Verifier | None
    """None in an open mesh or none at all."""

    addresses_of: Callable[[str], Iterable[str]]
    """Where an alive member's requests may come from, by name: IP addresses."""

    node: str = ""
    """In an open mesh this node's name: what is not believed there is an ordinary request, for this node alone."""

    mode: str = "none"
    """secured, open or none."""

    mesh: str = "default"
    """The mesh's name."""

    open_uploads: bool = False
    """Whether replicas are taken in an open mesh."""

    doubts: Doubts = field(default_factory=lambda: Doubts(SystemClock()))

    async def hop(self, scope: Scope, body: bytes) -> str | None:
        """The member that forwarded this; "" when a claim could not be believed; None when there is none.

        Raises Unauthorized in a secured mesh.
        """
        claimed = first(scope["headers"], FORWARDED.lower().encode())
        if claimed is None:
            return None
        if self.verifier is not None:
            try:
                return (await self._verified(scope, body)).forwarded
            except Unauthorized as error:
                self.doubts.tell(claimed, client_of(scope), error.message)
                raise
        if _is_among(client_of(scope), self.addresses_of(claimed)):
            return claimed
        self.doubts.tell(claimed, client_of(scope), "no member of that name has this address")
        return ""

    def verdict(self, scope: Scope, caller: Caller) -> Verdict:
        """What keeps a node out that greets this one."""
        refusal: str | None = None
        if self.verifier is not None:
            try:
                self._verify(scope, digest(b""))
            except Unauthorized as error:
                refusal = error.message
        return judge(caller, mode=self.mode, name=self.mesh, refusal=refusal)

    async def write(self, scope: Scope, body: bytes) -> None:
        """Let a write of the operator's through: signed in a secured mesh, else from this machine and no web page.

        Raises Unauthorized, or Forbidden where nothing can be signed.
        """
        if self.verifier is not None:
            await self._verified(scope, body)
        else:
            self.from_here(scope)

    def private(self, scope: Scope) -> None:
        """Let a read through that is the operator's or a member's alone: as a write.

        Raises Unauthorized, or Forbidden where nothing can be signed.
        """
        if self.verifier is None:
            self.from_here(scope)
        elif self.read(scope) is None:
            remedy = "use the viiwork command with the secret of the mesh"
            raise Unauthorized("missing: only members and the operator may read that", remedy=remedy)

    @staticmethod
    def from_here(scope: Scope, refusal: str = "without a mesh secret only this machine may do that") -> None:
        """Raises Forbidden unless a request comes from this machine and no web page. `refusal`: for other machines."""
        client = scope.get("client")
        if not client or not is_loopback(client[0]):
            raise Forbidden(refusal, remedy="call from the node's machine")
        if first(scope["headers"], b"origin") is not None:
            raise Forbidden("a web page may not do that", remedy="use the viiwork command")
        # A name that somebody else's DNS leads here is a web page too.
        if not is_loopback(_hostname(first(scope["headers"], b"host") or "")):
            raise Forbidden("the Host header names no loopback address", remedy="call localhost or 127.0.0.1")

    async def _verified(self, scope: Scope, body: bytes) -> Signed:
        proof = await anyio.to_thread.run_sync(digest, body) if len(body) > LARGE else digest(body)
        return self._verify(scope, proof)

    def read(self, scope: Scope) -> str | None:
        """The member that reads; None: anybody, who may read as well, but a wrong secret is told.

        Raises Unauthorized in a secured mesh.
        """
        if self.verifier is None:
            claimed = first(scope["headers"], NODE.lower().encode())
            return claimed if claimed and _is_among(client_of(scope), self.addresses_of(claimed)) else None
        if first(scope["headers"], AUTH.lower().encode()) is None:
            return None
        # Looked at by whoever lets members in without a key and by the handler: a nonce counts once.
        signed = scope.get(_SIGNED)
        if signed is None:
            signed = scope[_SIGNED] = self._verify(scope, digest(b""))
        return str(signed.node)

    def upload(self, scope: Scope) -> str:
        """Demand a member's signature on a streamed upload; in an open mesh, that it comes from a member's address.
        The member's name.

        Raises Unauthorized.
        """
        if self.verifier is not None:
            return self._verify(scope, STREAMED).node
        if not self.open_uploads:
            raise Unauthorized("replicas are taken in a secured mesh only")
        claimed = first(scope["headers"], NODE.lower().encode())
        if not claimed or not _is_among(client_of(scope), self.addresses_of(claimed)):
            raise Unauthorized("replicas are taken from members only")
        return claimed

    def _verify(self, scope: Scope, proof: Digest) -> Signed:
        assert self.verifier is not None
        return self.verifier.verify(scope["method"], target(scope), header_text(scope["headers"]), proof)


def client_of(scope: Scope) -> str:
    """The IP address that a request comes from; empty where the server does not know."""
    client = scope.get("client")
    return str(client[0]) if client else ""


def _is_among(client: str, addresses: Iterable[str]) -> bool:
    """Whether packets to `client` go to one of `addresses`: a v4-mapped form is the address inside."""
    try:
        inner = embedded(ipaddress.ip_address(client))
        return any(embedded(ipaddress.ip_address(one)) == inner for one in addresses)
    except ValueError:
        return False


def _hostname(host: str) -> str:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def is_loopback(host: str) -> bool:
    """Whether a host name or an address is this machine's own."""
    if host == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return embedded(address).is_loopback

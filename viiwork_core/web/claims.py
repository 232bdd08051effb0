"""Who a request says it comes from: the check of mesh headers at the door.

A request that carries a hop is served here or not at all, proven or not. In a secured mesh an unproven one is answered
401 with the reason. In an open mesh the claim counts if the request comes from an address of that member; otherwise it
is an ordinary client's, and still not forwarded again.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

import anyio

from viiwork_core.errors import Forbidden, Unauthorized
from viiwork_core.proxy.headers import first
from viiwork_core.proxy.request import LARGE, Scope, target
from viiwork_core.security.signing import AUTH, FORWARDED, STREAMED, Digest, Signed, Verifier, digest, header_text


@dataclass(frozen=True, slots=True)
class Claims:
    """Checks what a request claims about its sender."""

    verifier: Verifier | None
    """None in an open mesh or none at all."""

    address_of: Callable[[str], str | None]
    """The address of an alive member, by name."""

    async def hop(self, scope: Scope, body: bytes) -> str | None:
        """The member that forwarded this; "" when a claim could not be believed; None when there is none.

        Raises Unauthorized in a secured mesh.
        """
        claimed = first(scope["headers"], FORWARDED.lower().encode())
        if claimed is None:
            return None
        if self.verifier is not None:
            return (await self._verified(scope, body)).forwarded
        client = scope.get("client")
        return claimed if client and self.address_of(claimed) == client[0] else ""

    async def write(self, scope: Scope, body: bytes) -> None:
        """Let a write of the operator's through: signed in a secured mesh, else from this machine and no web page.

        Raises Unauthorized, or Forbidden where nothing can be signed.
        """
        if self.verifier is not None:
            await self._verified(scope, body)
            return
        client = scope.get("client")
        if not client or not _is_loopback(client[0]):
            raise Forbidden(
                "without a mesh secret only this machine may do that", remedy="call from the node's machine"
            )
        if first(scope["headers"], b"origin") is not None:
            raise Forbidden("a web page may not do that", remedy="use the viiwork command")
        # A name that somebody else's DNS leads here is a web page too.
        if not _is_loopback(_hostname(first(scope["headers"], b"host") or "")):
            raise Forbidden("the Host header names no loopback address", remedy="call localhost or 127.0.0.1")

    async def _verified(self, scope: Scope, body: bytes) -> Signed:
        proof = await anyio.to_thread.run_sync(digest, body) if len(body) > LARGE else digest(body)
        return self._verify(scope, proof)

    def read(self, scope: Scope) -> None:
        """Check a member's read, if it is signed: anybody may read, but a wrong secret is told."""
        if self.verifier is not None and first(scope["headers"], AUTH.lower().encode()) is not None:
            self._verify(scope, digest(b""))

    def upload(self, scope: Scope) -> Signed:
        """Demand a member's signature on a streamed upload. Raises Unauthorized."""
        if self.verifier is None:
            raise Unauthorized("replicas are taken in a secured mesh only")
        return self._verify(scope, STREAMED)

    def _verify(self, scope: Scope, proof: Digest) -> Signed:
        assert self.verifier is not None
        return self.verifier.verify(scope["method"], target(scope), header_text(scope["headers"]), proof)


def _hostname(host: str) -> str:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback

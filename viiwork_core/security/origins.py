"""Origins: which web pages may use the API from a browser, and by which names a browser may call a node.

A browser says in Origin which page a request comes from. It lets a page read an answer of another origin only where
that answer says so (CORS), but sends many requests before it knows: those that change something are refused here.

A page can also have its own DNS name lead to this machine (DNS rebinding). Its requests then look like those of the
node's own pages, but for the Host header, which holds that name.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self
from urllib.parse import urlsplit

_PATTERN = re.compile(
    r"(?:(?P<scheme>[a-z][a-z0-9+.-]{0,31})://)?(?P<any>\*\.)?(?P<host>[A-Za-z0-9_.-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])"
    r"(?::(?P<port>[0-9]{1,5}|\*))?",
    re.ASCII,
)
_TAILNET: Final = (ipaddress.ip_network("100.64.0.0/10"), ipaddress.ip_network("fd7a:115c:a1e0::/48"))
_TAILNET_NAMES: Final = ".ts.net"
_PRIVATE_NAMES: Final = (".localhost", ".local", ".internal", ".home.arpa", ".lan", _TAILNET_NAMES)
"""Ends of names that nobody can have lead here from outside: no public server answers for them."""


@dataclass(frozen=True, slots=True)
class Place:
    """A host and a port, as an Origin or a Host header names them."""

    scheme: str
    """Empty in a Host header."""

    host: str
    """In lower case, without brackets."""

    port: int | None
    """None: not written, so the scheme's own."""

    @classmethod
    def of_origin(cls, origin: str) -> Self | None:
        """None: no page that has a place, such as one in a sandbox."""
        return cls._read(origin)

    @classmethod
    def of_host(cls, header: str | None) -> Self | None:
        """None: no Host header, or none that can be read."""
        return cls._read(f"//{header}") if header else None

    @classmethod
    def _read(cls, url: str) -> Self | None:
        try:
            parts = urlsplit(url)
            return cls(parts.scheme.lower(), parts.hostname, parts.port) if parts.hostname else None
        except ValueError:
            return None


@dataclass(frozen=True, slots=True)
class OriginPattern:
    """One entry of api.cors.allow_origins."""

    text: str
    scheme: str | None
    """None: http and https, and any port where none is written."""

    host: str
    """Empty: any."""

    below: bool
    """Names below `host`, and not itself."""

    port: int | None
    any_port: bool

    @classmethod
    def parse(cls, text: str) -> Self:
        """`*`, or [SCHEME://]HOST[:PORT], with `*.` before HOST for the names below it. Raises ValueError."""
        if text == "*":
            return cls(text, None, "", below=False, port=None, any_port=True)
        found = _PATTERN.fullmatch(text)
        if found is None or not _is_host(found["host"]):
            raise ValueError("must be an origin without a path, such as https://chat.example.org, *.example.org or *")
        port = found["port"]
        if port not in (None, "*") and not 1 <= int(port) <= 65535:
            raise ValueError("must have a port of 1 to 65535")
        return cls(
            text,
            found["scheme"],
            found["host"].strip("[]").lower(),
            below=found["any"] is not None,
            port=None if port in (None, "*") else int(port),
            any_port=port == "*" or (port is None and found["scheme"] is None),
        )

    def names(self, host: str) -> bool:
        """Whether that is a name that is meant."""
        return not self.host or (host.endswith(f".{self.host}") if self.below else host == self.host)

    def fits(self, page: Place) -> bool:
        """Whether that page is meant."""
        schemes = ("http", "https") if self.scheme is None else (self.scheme,)
        return page.scheme in schemes and self.names(page.host) and (self.any_port or page.port == self.port)


class Origins:
    """The pages that may use this API. Programs that are no browsers send no Origin, and are not asked."""

    def __init__(self, allowed: Sequence[str] | None = None, *, tailnet: bool = True) -> None:
        """`allowed`: patterns; None: pages of this machine, and those of the tailnet that the node is called by a name
        of. `tailnet`: also pages at addresses of a tailnet."""
        self._derived = allowed is None
        self._patterns = [OriginPattern.parse(text) for text in allowed or ()]
        self._all = any(not pattern.host for pattern in self._patterns)
        self._tailnet = tailnet and (allowed is None or bool(allowed))

    def shares(self, origin: str, host: str | None) -> bool:
        """Whether a page may read what is answered."""
        page = Place.of_origin(origin)
        if page is None:
            return self._all
        return any(pattern.fits(page) for pattern in self._patterns) or self._is_near(page, Place.of_host(host))

    def may_write(self, origin: str, host: str | None, *, local: bool) -> bool:
        """Whether a page may change something: it may read too, or comes from the host that is called.

        `local`: the request comes from this machine, where a Host header may be a stranger's DNS name.
        """
        page, called = Place.of_origin(origin), Place.of_host(host)
        own = page is not None and called is not None and page.host == called.host
        return (own and not (local and self.is_strange(host))) or self.shares(origin, host)

    def is_strange(self, host: str | None) -> bool:
        """Whether a Host header may be the name of somebody who has it lead here: a public name nobody spoke of."""
        called = Place.of_host(host)
        # HTTP/1.0 has none, and no browser speaks that.
        if called is None or _is_address(called.host) or "." not in called.host or called.host.endswith(_PRIVATE_NAMES):
            return False
        return not any(pattern.names(called.host) for pattern in self._patterns)

    def _is_near(self, page: Place, called: Place | None) -> bool:
        if page.scheme not in ("http", "https"):
            return False
        if self._tailnet and _is_in_tailnet(page.host):
            return True
        if not self._derived:
            return False
        return page.host in ("localhost", "127.0.0.1", "::1") or (called is not None and _share_a_tailnet(page, called))


def is_same(origin: str, host: str | None) -> bool:
    """Whether a page was served by what the Host header names: host and port."""
    page, called = Place.of_origin(origin), Place.of_host(host)
    if page is None or called is None or page.host != called.host:
        return False
    # A browser writes no port that is the scheme's own, in either of the two.
    return page.port == called.port


def _share_a_tailnet(page: Place, called: Place) -> bool:
    """NODE.TAILNET.ts.net: names of one tailnet differ in their first part alone."""
    one, other = page.host.partition(".")[2], called.host.partition(".")[2]
    return one == other and one.endswith(_TAILNET_NAMES)


def _is_in_tailnet(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return any(address in network for network in _TAILNET)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _is_host(host: str) -> bool:
    return _is_address(host[1:-1]) if host.startswith("[") else not host.startswith((".", "-"))

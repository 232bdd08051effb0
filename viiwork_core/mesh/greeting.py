"""A greeting: what two nodes say of their meshes when one cannot join the other, so that both logs say why.

The gossip engine only knows that nobody answered. So the node that could not join asks the other's API,

    GET /v1/mesh/greeting?mode=secured&name=default&node=alpha     signed, if its mesh is secured
    {"node", "node_id", "age_s", "fits": ""}

and the other judges: "" when the two belong together, else what keeps them apart. Both log that.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Annotated, Final, Literal
from urllib.parse import parse_qsl, urlencode

import msgspec
import structlog
from msgspec import Meta

from viiwork_core.errors import BackendFailed

PATH: Final = "/v1/mesh/greeting"

Verdict = Literal["", "mesh mode mismatch", "other secret", "other mesh name", "clock skew"]

_MAX_QUERY = 1024
_MAX_ADDRESSES = 256

_Name = Annotated[str, Meta(min_length=1, max_length=256, pattern=r"^[A-Za-z0-9._-]+\Z")]

_log = structlog.get_logger("viiwork.mesh")


@dataclass(frozen=True, slots=True)
class Caller:
    """What the one says who greets. Not proven, unless its signature is."""

    node: str
    mode: str
    name: str

    def target(self) -> str:
        """Path and query."""
        return f"{PATH}?{urlencode({'mode': self.mode, 'name': self.name, 'node': self.node})}"


def read_caller(query: str) -> Caller | None:
    """The caller that a query describes; None: it makes no sense, or is empty."""
    fields = dict(parse_qsl(query[:_MAX_QUERY], max_num_fields=8)) if len(query) <= _MAX_QUERY else {}
    try:
        caller = msgspec.convert(fields, type=_Query)
    except msgspec.ValidationError:
        return None
    return Caller(caller.node, caller.mode, caller.name)


class _Query(msgspec.Struct, frozen=True):
    node: _Name
    mode: Literal["secured", "open", "none"]
    name: _Name


class Greeting(msgspec.Struct, frozen=True):
    """The answer."""

    node: _Name
    node_id: _Name
    age_s: Annotated[float, Meta(ge=0)]
    """Seconds since the process began."""

    fits: Verdict = ""


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Greeting)


def encode_greeting(greeting: Greeting) -> bytes:
    """The JSON text of an answer."""
    return _encoder.encode(greeting)


def read_greeting(raw: bytes) -> Greeting:
    """Read an answer. Raises BackendFailed for one that is none: an older node's, or some other server's."""
    try:
        return _decoder.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BackendFailed(f"no greeting: {error}") from error


def judge(caller: Caller, *, mode: str, name: str, refusal: str | None) -> Verdict:
    """What keeps the caller out of a mesh of this mode and name; `refusal`: why its signature was not proven."""
    if caller.mode != mode:
        return "mesh mode mismatch"
    if refusal is not None:
        return "clock skew" if refusal.startswith("skew") else "other secret"
    return "other mesh name" if caller.name != name else ""


class Strangers:
    """Those who could not be let in, each address told once until the reason is another."""

    def __init__(self) -> None:
        self._told: OrderedDict[str, str] = OrderedDict()

    def saw(self, address: str, verdict: str, **details: str) -> None:
        """Log it, unless that was the last word on this address. A verdict of "" forgets the address."""
        if not verdict:
            self._told.pop(address, None)
            return
        if self._told.get(address) != verdict:
            _log.warning(verdict, address=address, **details)
        self._told[address] = verdict
        self._told.move_to_end(address)
        if len(self._told) > _MAX_ADDRESSES:
            self._told.popitem(last=False)


ADVICE: Final = {
    "mesh mode mismatch": "one of the two is open and the other has a secret: give all nodes the secret, or none",
    "other secret": "give both nodes the same secret",
    "other mesh name": "give both nodes the same mesh.name, if they belong together",
    "clock skew": "synchronise the clocks of both machines (NTP)",
    "": "gossip does not get through, though the API does: let TCP and UDP pass to that port",
}
"""What to do about each verdict."""

"""The kinds of single values in the configuration: how each is checked, written out and described."""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path
from typing import Annotated, TypeVar
from urllib.parse import SplitResult, urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer, WithJsonSchema

from viiwork_core.config.durations import (
    DURATION_PATTERN,
    SIZE_PATTERN,
    format_duration,
    format_size,
    parse_duration,
    parse_size,
)
from viiwork_core.security.origins import OriginPattern

T = TypeVar("T")

_HOST_NAME = re.compile(r"[A-Za-z0-9._-]{1,253}")
_WORD = re.compile(r"\S{1,128}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")

_MOST = (1 << 31) - 1
"""No count needs more, and some of those who read the figures on the wire have no room for more."""


def http_parts(url: str) -> SplitResult | None:
    """The parts of an http or https URL; None: it is none."""
    try:
        parts = urlsplit(url)
        sound = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return None
    return parts if sound else None


def _word(value: str) -> str:
    if not _WORD.fullmatch(value):
        raise ValueError("must be 1 to 128 characters without white space")
    return value


def _host_name(value: str) -> str:
    if not _HOST_NAME.fullmatch(value):
        raise ValueError("must be 1 to 253 of the characters A-Z a-z 0-9 . _ -")
    return value


def _variable(value: str) -> str:
    if not _VARIABLE.fullmatch(value):
        raise ValueError("must be the name of an environment variable; put the secret into that variable, not here")
    return value


def _ip(value: str) -> str:
    try:
        return str(ipaddress.ip_address(value))
    except ValueError:
        raise ValueError("must be an IP address") from None


def _own_ip(value: str) -> str:
    address = _ip(value)
    if ipaddress.ip_address(address).is_unspecified:
        raise ValueError("must be an address that others can reach; a wildcard is none")
    return address


def _own_ip_or_empty(value: str) -> str:
    return _own_ip(value) if value else value


def _seed(value: str) -> str:
    host, _, port = value.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    try:
        address = ipaddress.ip_address(host[1:-1] if bracketed else host)
    except ValueError:
        address = None
    if address is None or bracketed != (address.version == 6) or not re.fullmatch(r"[1-9]\d{0,4}", port, re.ASCII):
        raise ValueError("must be ip:port; write the address in digits, IPv6 in brackets, such as 192.0.2.7:7946")
    if int(port) > 65535:
        raise ValueError("must have a port of 1 to 65535")
    return f"[{address}]:{port}" if bracketed else f"{address}:{port}"


def _origin(value: str) -> str:
    return OriginPattern.parse(value).text


def _listed(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


def _path(value: object) -> object:
    return Path(value).expanduser() if isinstance(value, str) and value else value


_OVER_ZERO = {"title": "duration over 0", "type": "string", "pattern": DURATION_PATTERN}
_DURATION = {"title": "duration", "anyOf": [{"type": "string", "pattern": DURATION_PATTERN}, {"const": 0}]}
_SIZE = {"title": "size", "anyOf": [{"type": "string", "pattern": SIZE_PATTERN}, {"type": "integer", "minimum": 1}]}
_AS_DURATION = PlainSerializer(format_duration, when_used="json")
_AS_SIZE = PlainSerializer(format_size, when_used="json")

Word = Annotated[str, AfterValidator(_word)]
HostName = Annotated[str, AfterValidator(_host_name)]
Variable = Annotated[str, AfterValidator(_variable)]
Ip = Annotated[str, AfterValidator(_ip), Field(title="IP address")]
OwnIp = Annotated[str, AfterValidator(_own_ip), Field(title="IP address")]
OwnIpOrEmpty = Annotated[str, AfterValidator(_own_ip_or_empty), Field(title="IP address")]
Seed = Annotated[str, AfterValidator(_seed), Field(title="ip:port")]
Origin = Annotated[str, AfterValidator(_origin), Field(title="origin")]
File = Annotated[Path, BeforeValidator(_path)]
Seconds = Annotated[float, BeforeValidator(parse_duration), _AS_DURATION, WithJsonSchema(_DURATION)]
Positive = Annotated[float, Field(gt=0), BeforeValidator(parse_duration), _AS_DURATION, WithJsonSchema(_OVER_ZERO)]
Bytes = Annotated[int, Field(ge=1), BeforeValidator(parse_size), _AS_SIZE, WithJsonSchema(_SIZE)]
Tuple = Annotated[tuple[T, ...], BeforeValidator(_listed)]
Port = Annotated[int, Field(ge=1, le=65535)]
Count = Annotated[int, Field(ge=0, le=_MOST)]
AtLeastOne = Annotated[int, Field(ge=1, le=_MOST)]

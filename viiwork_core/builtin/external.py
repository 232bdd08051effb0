"""Servers that run already, here or on another machine, and speak OpenAI's HTTP interface.

`GET /v1/models` is all that such servers have in common besides their answers, so it is all that they are asked. None
of them tells there how busy it is: the core's own requests are what it knows of their load.
"""

from __future__ import annotations

import ipaddress
import json
import os
import re
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Annotated, Any, ClassVar, Self
from urllib.parse import SplitResult, urlsplit

import httpx
from pydantic import AfterValidator, Field

from viiwork_core import (
    Address,
    Attaches,
    ConfigError,
    Context,
    Engine,
    EngineUnreachable,
    Launch,
    Load,
    PluginOptions,
    Probe,
    Spec,
    UsageSource,
    VariesWire,
    Wire,
)

ENDPOINTS = frozenset({"/v1/chat/completions", "/v1/completions", "/v1/embeddings"})
MODELS = "/v1/models"

REPLY_LIMIT = 4 << 20
"""Bytes of a reply that are read at most; what hosted services list is half a MiB."""

LONGEST_CONTEXT = 1 << 40
"""Tokens; more is no context."""

_PORTS = {"http": 80, "https": 443}
_LABEL = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")
_SEGMENT = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9._~-]+")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_KEY = re.compile(r"[!-~]{1,4096}")
_NAME = re.compile(r"[^\x00-\x1f\x7f]{1,256}")


def address_of(url: str) -> Address:
    """Where a server listens. Its URL may end in /v1, as the base URLs of OpenAI's clients do.

    Raises ValueError with what is wrong and the remedy, and never repeats the URL: it may hold a password.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ValueError("is no URL; write it like http://127.0.0.1:9001") from None
    if parts.scheme not in _PORTS:
        raise ValueError("must begin with http:// or https://")
    if "@" in parts.netloc:
        raise ValueError("must hold no user and password; put a key into a variable and name that in api_key_env")
    if port == 0:
        raise ValueError("must have a port of 1 to 65535")
    if "?" in url or "#" in url:
        raise ValueError("must end with its path; leave out what follows ? or #")
    return Address(_host(parts), port or _PORTS[parts.scheme], tls=parts.scheme == "https", base=_base(parts.path))


def _host(parts: SplitResult) -> str:
    host = parts.hostname or ""
    if "[" in parts.netloc:
        try:
            address = ipaddress.IPv6Address(host)
        except ValueError:
            raise ValueError("must name an IPv6 address in its brackets") from None
        if address.scope_id is not None:
            raise ValueError("must name an IPv6 address without a zone")
        return str(address)
    if len(host) > 253 or not all(_LABEL.fullmatch(label) for label in host.split(".")):
        raise ValueError("must name a host; write a name or an IP address after //")
    return host


def _base(path: str) -> str:
    path = path.rstrip("/")
    if (endpoint := next((one for one in (MODELS, *ENDPOINTS) if path.endswith(one)), None)) is not None:
        raise ValueError(f"is an endpoint's; leave out {endpoint}")
    path = path.removesuffix("/v1").rstrip("/")
    if path and not all(_SEGMENT.fullmatch(segment) for segment in path.removeprefix("/").split("/")):
        raise ValueError("must have a plain path; use letters, digits, . _ ~ and - between its slashes")
    return path


def _url(value: str) -> str:
    address_of(value)
    return value


def _each_once(urls: tuple[str, ...]) -> tuple[str, ...]:
    if len({address_of(url) for url in urls}) != len(urls):
        raise ValueError("names a server twice; list each once, and raise parallel for more slots")
    return urls


def _variable(value: str) -> str:
    if not _VARIABLE.fullmatch(value):
        raise ValueError("must be the name of an environment variable; put the key into that variable, not here")
    return value


def _name(value: str) -> str:
    if not _NAME.fullmatch(value):
        raise ValueError("must be 1 to 256 characters without control characters")
    return value


class ExternalOptions(PluginOptions):
    """The `external:` block of a model."""

    urls: Annotated[tuple[Annotated[str, AfterValidator(_url)], ...], Field(min_length=1), AfterValidator(_each_once)]
    """Where the servers are: one backend each."""

    api_key_env: Annotated[str, AfterValidator(_variable)] | None = None
    """Environment variable with the key that the servers ask for, sent to them as Authorization: Bearer."""

    model: Annotated[str, AfterValidator(_name)] | None = None
    """What the servers call the model; None: what the mesh calls it."""

    usage: UsageSource = UsageSource.UNASKED
    """Where a stream tells its tokens. Ollama, vLLM, SGLang and LM Studio take `include_usage`; it is not the default,
    since other servers refuse a request with a field that they do not know."""


@dataclass(frozen=True, slots=True)
class _Reply:
    """An answer as it came, cut at REPLY_LIMIT."""

    status: int
    body: bytes


class External(Engine, Attaches, VariesWire):
    """One model on servers that nobody here has started."""

    name: ClassVar[str] = "external"
    Options = ExternalOptions
    wire: ClassVar[Wire] = Wire(endpoints=ENDPOINTS)

    def __init__(self, options: ExternalOptions, context: Context) -> None:
        """Raises ConfigError when the key that the options name is not there."""
        super().__init__(options, context)
        self._options = options
        self._headers = _authorization(options.api_key_env)
        self._client: httpx.AsyncClient | None = None
        self._contexts: dict[Address, Mapping[str, int]] = {}
        """Tokens by the servers' own names of their models, as last told."""

    async def __aenter__(self) -> Self:
        # The system's certificates, as for the requests themselves. No kept connections: many servers close an idle
        # one after five seconds, just when the next question comes.
        self._client = httpx.AsyncClient(
            verify=ssl.create_default_context(),
            trust_env=False,
            timeout=10.0,
            limits=httpx.Limits(max_keepalive_connections=0),
            headers=[("accept-encoding", "identity"), *self._headers],
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    def addresses(self) -> tuple[Address, ...]:
        return tuple(address_of(url) for url in self._options.urls)

    def varied_wire(self) -> Wire:
        return replace(self.wire, usage=self._options.usage, model=self._options.model, headers=self._headers)

    def launch(self, spec: Spec) -> Launch | None:
        """Nothing."""
        del spec
        return None

    async def probe(self, address: Address) -> Probe:
        """Ready when GET /v1/models answers 200 with JSON."""
        reply = await self._ask(address)
        if reply.status != httpx.codes.OK:
            return _not_ready(f"answers {reply.status}{_remedy(reply.status)}")
        if len(reply.body) > REPLY_LIMIT:
            return _not_ready(f"answers more than {REPLY_LIMIT >> 20} MiB")
        try:
            told = json.loads(reply.body)
        except (ValueError, RecursionError):
            return _not_ready("answers something other than JSON; see in external.urls whether it is the right server")
        self._contexts[address] = dict(_told_contexts(told))
        return Probe(ready=True)

    async def load(self, spec: Spec, address: Address) -> Load:
        """The slots that the operator grants, and no figure for what is busy; no request is made."""
        told = self._contexts.get(address, {})
        # A server with one model may list it by another name than it answers to.
        only = next(iter(told.values())) if len(told) == 1 else None
        return Load(slots=spec.parallel, busy=None, context=told.get(self._options.model or spec.model, only))

    async def _ask(self, address: Address) -> _Reply:
        if self._client is None:
            raise EngineUnreachable("the server was asked before the engine was opened")
        body = bytearray()
        try:
            async with self._client.stream("GET", address.url + MODELS) as response:
                async for part in response.aiter_raw():
                    body += part
                    if len(body) > REPLY_LIMIT:
                        break
        except httpx.HTTPError as error:
            words = str(error) or type(error).__name__
            raise EngineUnreachable(f"no server answers at {address.url}: {words}") from error
        return _Reply(response.status_code, bytes(body))


def _authorization(variable: str | None) -> tuple[tuple[str, str], ...]:
    if variable is None:
        return ()
    key = os.environ.get(variable, "").strip()
    if not key:
        raise ConfigError(
            f"external.api_key_env: the environment variable {variable} is not set",
            remedy="put the servers' key into it, or remove api_key_env",
        )
    if not _KEY.fullmatch(key):
        raise ConfigError(
            f"external.api_key_env: the environment variable {variable} holds what cannot be a key",
            remedy="a key is up to 4096 printable ASCII characters without white space",
        )
    return (("authorization", f"Bearer {key}"),)


def _not_ready(reason: str) -> Probe:
    return Probe(ready=False, reason=f"GET {MODELS} {reason}")


def _remedy(status: int) -> str:
    if status in (401, 403):
        return ": it does not accept the key; set external.api_key_env to the variable with the right one"
    if 300 <= status < 400:
        return ", a redirect, which is not followed; write the server's real address into external.urls"
    if status == httpx.codes.NOT_FOUND:
        return "; see in external.urls whether the address and the path before /v1 are right"
    return ""


def _told_contexts(told: Any) -> Iterator[tuple[str, int]]:
    """Name and tokens of each entry that tells both: vLLM, SGLang and viiwork say max_model_len, several hosted
    services context_length, llama-server meta.n_ctx, each for one request."""
    listed = told.get("data") if isinstance(told, dict) else told
    for entry in listed if isinstance(listed, list) else ():
        if isinstance(entry, dict) and isinstance(entry.get("id"), str):
            meta = entry.get("meta")
            llama = meta.get("n_ctx") if isinstance(meta, dict) else None
            figures = (entry.get("max_model_len"), entry.get("context_length"), llama)
            context = next((figure for figure in figures if _is_context(figure)), None)
            if context is not None:
                yield entry["id"], context


def _is_context(figure: Any) -> bool:
    return isinstance(figure, int) and not isinstance(figure, bool) and 1 <= figure <= LONGEST_CONTEXT

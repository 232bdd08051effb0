"""The API of a node as a client sees it, asked without a library of its own."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import urlencode, urlsplit

import httpx
import msgspec

from viiwork_core.cli.operator import API_KEY
from viiwork_core.contracts.doctor import Finding, Level
from viiwork_core.errors import Unauthorized, ViiworkError
from viiwork_core.security.signing import TO, Signer

CHAT: Final = "/v1/chat/completions"
ASK_S: Final = 10.0
"""For what a node knows without asking an engine."""


class NotLetIn(ViiworkError):
    """A node answers, and asks for an API key or a proof: nothing is wrong with it, and less can be looked at."""

    def __init__(self, where: str, words: str) -> None:
        remedy = f"set {API_KEY} to an API key, or the variable with the mesh's secret as for the node"
        super().__init__(f"{where} does not let this command in: {words}", remedy=remedy)

    @property
    def finding(self) -> Finding:
        """No fault of the node's."""
        return Finding(Level.WARNING, self.message, self.remedy)


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer, whatever its status."""

    status: int
    headers: Mapping[str, str]
    """Any case."""

    json: Any
    """None: it is no JSON."""

    seconds: float

    @property
    def error(self) -> str:
        """Why it was refused, in the words of whoever refused."""
        found = self.json.get("error") if isinstance(self.json, dict) else None
        words = found.get("message") if isinstance(found, dict) else found
        return str(words or f"status {self.status}")[:300]

    @property
    def lets_in(self) -> bool:
        """False where the node itself wants to know who asks. An engine's own 401 is another matter."""
        found = self.json.get("error") if isinstance(self.json, dict) else None
        own = isinstance(found, dict) and found.get("src") == "viiwork"
        return not (own and self.status == Unauthorized.status)

    @property
    def usage(self) -> tuple[int, int, int]:
        """Tokens of the prompt, how many of them were in the cache, and tokens written; 0 where it does not say."""
        usage = self.json.get("usage") if isinstance(self.json, dict) else None
        usage = usage if isinstance(usage, dict) else {}
        details = usage.get("prompt_tokens_details")
        cached = details.get("cached_tokens") if isinstance(details, dict) else 0
        return usage.get("prompt_tokens") or 0, cached or 0, usage.get("completion_tokens") or 0


class Api:
    """One node's API. `async with` opens and closes it. All raise ViiworkError when nothing answers."""

    def __init__(
        self, url: str, timeout: float, shown: Sequence[tuple[str, str]] = (), signer: Signer | None = None
    ) -> None:
        """`url`: http://HOST:PORT; `timeout`: seconds that an engine's answer may take; `shown`: headers that let the
        caller in there. Another node is shown an API key among them, and nothing else. `signer`: signs what a node
        with API keys lets nobody else ask."""
        self.url, self._timeout, self._shown, self._signer = url, timeout, dict(shown), signer
        self._elsewhere = {name: value for name, value in shown if name == "Authorization"}
        self.members = dict[str, str]()
        """Processes by their ip:port: whom a signature is for."""

    async def __aenter__(self) -> Self:
        # As many at once as a check wants: how many the node lets through is what is looked at.
        limits = httpx.Limits(max_connections=None)
        self._http = httpx.AsyncClient(trust_env=False, limits=limits, timeout=self._timeout)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.aclose()

    async def get(self, path: str, *, at: str | None = None) -> Any:
        """The JSON of a 200; `at`: another node's ip:port. Raises NotLetIn, or ViiworkError for all else."""
        base = f"http://{at}" if at else self.url
        reply = await self._send("GET", base + path, None, {}, ASK_S)
        if not reply.lets_in:
            raise NotLetIn(base, reply.error)
        if reply.status != httpx.codes.OK or reply.json is None:
            raise ViiworkError(f"{base}{path} answers {reply.status}")
        return reply.json

    async def text(self, path: str) -> str:
        """The text of an answer."""
        try:
            return (await self._http.get(self.url + path, headers=self._shown, timeout=ASK_S)).text
        except httpx.HTTPError as error:
            raise ViiworkError(f"{self.url}{path} does not answer: {_words(error)}") from error

    async def ask(
        self,
        body: Mapping[str, Any],
        *,
        host: str | None = None,
        session: str | None = None,
        at: str | None = None,
        path: str = CHAT,
    ) -> Reply:
        """One request for an answer; `host`: the node that is to serve it, `at`: another one to send it to.

        Raises NotLetIn.
        """
        query = f"?{urlencode({'host': host})}" if host else ""
        headers = {"X-Session-Id": session} if session else {}
        base = f"http://{at}" if at else self.url
        reply = await self._send("POST", f"{base}{path}{query}", body, headers, self._timeout)
        if not reply.lets_in:
            raise NotLetIn(base, reply.error)
        return reply

    async def _send(
        self, method: str, url: str, body: Mapping[str, Any] | None, headers: Mapping[str, str], timeout: float
    ) -> Reply:
        raw = b"" if body is None else msgspec.json.encode(body)
        kind = {} if body is None else {"Content-Type": "application/json"}
        headers = {**headers, **kind, **(self._shown if self._is_own(url) else self._elsewhere)}
        reply = await self._sent(method, url, raw, headers, timeout)
        if not reply.lets_in and (proof := self._proof(method, url, raw)):
            return await self._sent(method, url, raw, {**headers, **proof}, timeout)
        return reply

    async def _sent(self, method: str, url: str, raw: bytes, headers: Mapping[str, str], timeout: float) -> Reply:
        began = time.monotonic()
        try:
            answer = await self._http.request(method, url, content=raw, headers=headers, timeout=timeout)
        except httpx.TimeoutException as error:
            raise ViiworkError(f"{url} gave no answer within {timeout:g} s") from error
        except httpx.HTTPError as error:
            raise ViiworkError(f"{url} does not answer: {_words(error)}") from error
        try:
            found = msgspec.json.decode(answer.content)
        except (msgspec.DecodeError, UnicodeDecodeError):
            found = None
        return Reply(answer.status_code, answer.headers, found, time.monotonic() - began)

    def _is_own(self, url: str) -> bool:
        return url.startswith(f"{self.url}/")

    def _proof(self, method: str, url: str, raw: bytes) -> dict[str, str]:
        """A signature, for the process that is known to answer there; empty: none can be made."""
        parts = urlsplit(url)
        process = self.members.get(parts.netloc)
        if self._signer is None or (process is None and not self._is_own(url)):
            return {}
        target = f"{parts.path}?{parts.query}" if parts.query else parts.path
        addressed = [] if process is None else [(TO, process)]
        return dict([*addressed, *self._signer.sign(method, target, addressed, raw)])


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__

"""Every error viiwork raises on purpose, with what a client and an operator need to know as class data."""

from __future__ import annotations

from typing import ClassVar, Literal

Retry = Literal["never", "elsewhere", "later"]


class ViiworkError(Exception):
    """Root of all errors raised on purpose.

    `status` and `type` shape the HTTP answer (OpenAI error.type), `code` is stable for programs, `retry` tells the
    forward loop whether another route may help, and `remedy` tells the operator what to do.
    """

    status: ClassVar[int] = 500
    type: ClassVar[str] = "server_error"
    code: ClassVar[str] = "internal"
    retry: ClassVar[Retry] = "never"

    def __init__(self, message: str, *, remedy: str = "", retry_after: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy
        self.retry_after = retry_after


class ConfigError(ViiworkError):
    """The configuration cannot be used; the message holds one line per problem."""

    code = "config"


class PluginError(ViiworkError):
    """A plugin could not be loaded, or misbehaved when it was called."""

    code = "plugin"


class NotBuiltYet(PluginError):
    """A plugin registers a name whose behaviour does not exist yet."""

    code = "not_built_yet"


class DiscoveryFailed(ViiworkError):
    """A source cannot look for nodes now; it is asked again."""

    status, type, code, retry = 503, "unavailable", "discovery_failed", "later"


class InvalidRequest(ViiworkError):
    """The client's request cannot be served as it is."""

    status, type, code = 400, "invalid_request", "invalid_request"


class BodyTooLarge(InvalidRequest):
    """The request body is over api.max_body."""

    status, code = 413, "body_too_large"


class RequestLate(InvalidRequest):
    """The client began a request and then sent nothing more of it for too long."""

    status, code = 408, "request_timeout"


class MethodNotAllowed(InvalidRequest):
    """The path exists and does not take this method."""

    status, code = 405, "method_not_allowed"


class UnsupportedMediaType(InvalidRequest):
    """The path takes JSON only."""

    status, code = 415, "unsupported_media_type"


class NotFound(ViiworkError):
    """No such path, model or host."""

    status, type, code = 404, "not_found", "not_found"


class AliasRefused(ViiworkError):
    """An alias cannot stand for that: the names of the mesh are in its way."""

    status, type, code = 409, "invalid_request", "alias_refused"


class KeyRefused(ViiworkError):
    """The client shows no API key, or none that counts."""

    status, type, code = 401, "invalid_request_error", "invalid_api_key"


class ModelForbidden(ViiworkError):
    """The client's API key is not for this model."""

    status, type, code = 403, "invalid_request_error", "model_not_allowed"


class AllowanceSpent(ViiworkError):
    """The client's API key has used its tokens of today."""

    status, type, code = 429, "insufficient_quota", "insufficient_quota"


class KeyConflict(ViiworkError):
    """An API key cannot be written that way: the keys that there are stand in its way."""

    status, type, code = 409, "invalid_request", "key_refused"


class Unauthorized(ViiworkError):
    """A member's claim could not be proven; the reason is in the message."""

    status, type, code, retry = 401, "forbidden", "unproven", "elsewhere"


class Forbidden(ViiworkError):
    """The request comes from where nobody may ask for this."""

    status, type, code = 403, "forbidden", "forbidden"


class QueueFull(ViiworkError):
    """The model's queue holds routing.queue_max requests already."""

    status, type, code, retry = 429, "rate_limit", "queue_full", "later"


class BodiesFull(ViiworkError):
    """The bodies of all requests that wait or run are at api.max_inflight_bytes."""

    status, type, code, retry = 429, "rate_limit", "bodies_full", "elsewhere"


class TooManyConnections(ViiworkError):
    """The node has api.max_connections open."""

    status, type, code, retry = 503, "unavailable", "too_many_connections", "later"


class NoFreeSlot(ViiworkError):
    """No slot was free in time (client), or none is free now (a forward, which never waits)."""

    status, type, code, retry = 429, "rate_limit", "no_free_slot", "elsewhere"


class NoCapacity(ViiworkError):
    """Every route refused for want of room."""

    status, type, code, retry = 503, "unavailable", "no_capacity", "later"


class ModelNotServed(ViiworkError):
    """A forward named a model that this node does not serve (any more)."""

    status, type, code, retry = 503, "unavailable", "model_not_served", "elsewhere"


class BackendFailed(ViiworkError):
    """A backend or peer failed before the first byte of its answer."""

    status, type, code, retry = 502, "server_error", "backend_failed", "elsewhere"


class AnswerCut(ViiworkError):
    """The answer broke off after its first byte; the client's connection is broken too, so that it can tell."""

    status, type, code = 502, "server_error", "answer_cut"


class EngineUnreachable(ViiworkError):
    """The engine's port did not answer: nobody listens, or the connection broke or timed out."""

    status, code, retry = 502, "engine_unreachable", "elsewhere"


class EngineRefused(ViiworkError):
    """The engine answered with something other than what was asked for; its words are in the message."""

    status, code, retry = 502, "engine_refused", "elsewhere"


class CacheUnsupported(EngineRefused):
    """The engine, as it was started, saves or restores no session: the caches of its model stay where they are."""

    code = "cache_unsupported"


class CacheRefused(ViiworkError):
    """A cache file was refused: damaged, of another fingerprint, or not what it was labelled as."""

    status, type, code = 422, "invalid_request", "cache_refused"


class ReplicaGone(CacheRefused):
    """The replica is not in the store any more: a newer one has replaced it, or it was dropped."""


class FingerprintMismatch(CacheRefused):
    """The sender's fingerprint differs from the receiver's; nothing was transferred."""

    status, code = 409, "fingerprint_mismatch"


class BaseMissing(CacheRefused):
    """The file that a delta stands on is not here, or not the one that is meant: the whole file is needed."""

    status, code = 409, "base_missing"


class ResumeFrom(CacheRefused):
    """A part of the file is here from a transfer that broke off: it goes on from a byte that is told."""

    status, code = 409, "resume"

    def __init__(self, message: str, *, offset: int) -> None:
        super().__init__(f"{message}: go on from byte {offset}")
        self.offset = offset


class UpgradeUnsupported(ViiworkError):
    """The server cannot take a connection out of HTTP: the same request with a body is needed."""

    status, type, code = 501, "unavailable", "upgrade_unsupported"


class StoreFull(ViiworkError):
    """The replica store has no room for this file."""

    status, type, code = 507, "unavailable", "store_full"

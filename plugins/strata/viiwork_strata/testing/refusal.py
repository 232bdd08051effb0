"""Why the double says no."""

from __future__ import annotations

_TYPES = {401: "authentication_error", 403: "permission_error"}


class Refusal(Exception):
    """An answer other than 200. `kind` is set where the engine refuses, not the server in front of it."""

    def __init__(self, status: int, message: str, *, kind: str | None = None, type_: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.type = type_ or _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")

    @property
    def body(self) -> dict[str, object]:
        """{"error": {"type", "message", "code"[, "kind"]}}"""
        kind = {} if self.kind is None else {"kind": self.kind}
        return {"error": {"type": self.type, "message": self.message, "code": self.status, **kind}}

"""Why the double says no."""

from __future__ import annotations


class Refusal(Exception):
    """An answer other than 200. `kind` is set where the engine refuses, not the server in front of it."""

    def __init__(self, status: int, message: str, *, kind: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind

    @property
    def body(self) -> dict[str, object]:
        """{"error": {"type", "message", "code"[, "kind"]}}"""
        kind = {} if self.kind is None else {"kind": self.kind}
        type_ = "invalid_request_error" if self.status < 500 else "server_error"
        return {"error": {"type": type_, "message": self.message, "code": self.status, **kind}}

"""An engine's answer that is no stream, as the event that it must become for a client that was told its place in line.

Whoever was told its place has a status of 200 already, so the status goes into the event.
"""

from __future__ import annotations

from typing import Final

import msgspec

LONGEST_ERROR: Final = 64 * 1024
_LONGEST_TEXT: Final = 1000


def engine_error(status: int, text: bytes) -> bytes:
    """{"error": ...} on one line: the engine's own words where it has OpenAI's shape, else a description."""
    try:
        said = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        said = None
    if isinstance(said, dict) and isinstance(said.get("error"), dict):
        return msgspec.json.encode({"error": {"code": status, **said["error"]}})
    if status == 200:
        message = "the engine answered a request for a stream without one"
    else:
        words = text[:_LONGEST_TEXT].decode("utf-8", "replace")
        message = f"the engine answered {status}: {words}" if words else f"the engine answered {status}"
    kind = "invalid_request" if 400 <= status < 500 else "server_error"
    return msgspec.json.encode({"error": {"message": message, "type": kind, "code": status, "src": "engine"}})

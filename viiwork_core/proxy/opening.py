"""The conversation in a request's body: its messages, and what precedes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from viiwork_core.proxy.body import Body, first_byte

FIELDS: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "/v1/chat/completions": ("messages", ("tools",)),
    "/v1/messages": ("messages", ("system", "tools")),
    "/v1/responses": ("input", ("instructions", "tools")),
}
"""By path: the list of messages, and the fields whose content an engine puts before them."""


def messages(path: str, body: Body) -> Sequence[msgspec.Raw]:
    """The messages of a request; none where the path or the body has no list of them. A plain text in place of the
    list is one message of the user's."""
    fields = FIELDS.get(path)
    if fields is None:
        return ()
    whole = body.written(fields[0])
    if whole is not None and first_byte(whole) == b'"':
        return (msgspec.Raw(b'{"role":"user","content":' + bytes(whole) + b"}"),)
    return body.items(fields[0]) or ()


def opening(path: str, model: str, body: Body) -> list[bytes]:
    """What precedes them: the model's name, and each field that is there, as it is written."""
    _, before = FIELDS[path]
    pieces = [model.encode("utf-8", "surrogatepass")]
    for name in before:
        value = body.written(name)
        pieces.append(b"" if value is None else bytes(value))
    return pieces


def hint(body: Body) -> str | None:
    """What a client says of whom it speaks for, which may be one user with many conversations: OpenAI's
    `prompt_cache_key`, else Anthropic's `metadata.user_id`."""
    key = body.get("prompt_cache_key")
    if isinstance(key, str) and key:
        return key
    metadata = body.get("metadata")
    user = metadata.get("user_id") if isinstance(metadata, dict) else None
    return user if isinstance(user, str) and user else None

"""A request and its answer as text for people: what a node keeps where activity.prompts says so, and nowhere else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from viiwork_core.observe.prompts import LONGEST_TEXT

_UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_KINDS: Final = ("reasoning", "answer", "tool calls")


def said(raw: bytes) -> list[tuple[str, str]]:
    """(who, text) of each message of a request, in order; of a prompt without messages one. What is no text is named in
    brackets."""
    try:
        body = msgspec.json.decode(raw)
        return _said(body) if isinstance(body, dict) else []
    except _UNREADABLE:
        return []


def _said(body: Mapping[str, Any]) -> list[tuple[str, str]]:
    found = [("system", _text(body[name])) for name in ("system", "instructions") if body.get(name)]
    for name in ("messages", "prompt", "input"):
        found += _messages(body.get(name))
    return found


def _messages(value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield "user", value
    elif isinstance(value, list):
        for one in value:
            if isinstance(one, dict):
                yield str(one.get("role") or one.get("type") or "user"), _text(one)
            elif isinstance(one, str):
                yield "user", one


def _text(value: Any) -> str:
    """All text of a message or a part of one."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "\n".join(filter(None, map(_text, value)))
    if not isinstance(value, dict):
        return ""
    parts = [_text(value[name]) for name in ("content", "text", "thinking", "output") if value.get(name)]
    parts += [_call(one) for one in _listed(value.get("tool_calls")) if isinstance(one, dict)]
    if not parts and value.get("type") in ("tool_use", "function_call"):
        parts = [_call(value)]
    if not parts and isinstance(value.get("type"), str):
        parts = [f"[{value['type']}]"]
    return "\n".join(filter(None, parts))


def _call(one: Mapping[str, Any]) -> str:
    function = one.get("function")
    named = function if isinstance(function, dict) else one
    given = named.get("arguments", named.get("input", ""))
    return f"{named.get('name') or ''}({given if isinstance(given, str) else msgspec.json.encode(given).decode()})"


def transcript(messages: Sequence[tuple[str, str]]) -> str:
    """Of a request, its newest LONGEST_TEXT characters, each message after its sender."""
    parts, room = list[str](), LONGEST_TEXT
    for who, text in reversed(messages):
        part = f"[{who}]\n{text}"
        parts.append(part[-room:] if len(part) > room else part)
        room -= len(parts[-1]) + 2
        if room <= 0:
            break
    return "\n\n".join(reversed(parts))


class Answer:
    """The text of an answer, put together from its bytes as they came."""

    def __init__(self) -> None:
        self._texts = {kind: list[str]() for kind in _KINDS}

    @classmethod
    def of(cls, raw: bytes) -> Answer:
        """A whole answer, or a stream of events, even one that broke off."""
        made = cls()
        if raw.lstrip().startswith(b"{"):
            made._read(raw)
        else:
            for line in raw.splitlines():
                if line.startswith(b"data:"):
                    made._read(line[5:])
        return made

    def text(self) -> str:
        """Its first LONGEST_TEXT characters, with what is not plain answer labelled."""
        found = {kind: "".join(parts) for kind, parts in self._texts.items()}
        told = [f"[{kind}]\n{text}" for kind, text in found.items() if text]
        whole = found["answer"] if len(told) == 1 and found["answer"] else "\n\n".join(told)
        return whole[:LONGEST_TEXT]

    def _read(self, data: bytes) -> None:
        try:
            event = msgspec.json.decode(data)
            if isinstance(event, dict):
                self._event(event)
        except _UNREADABLE:
            return  # [DONE], or what an engine has of its own

    def _event(self, event: Mapping[str, Any]) -> None:
        for choice in _listed(event.get("choices")):
            if isinstance(choice, dict):
                self._delta(choice.get("delta") or choice.get("message") or choice)
        kind, delta = event.get("type"), event.get("delta")
        if kind == "content_block_delta":
            self._delta(delta)
        elif kind == "response.output_text.delta":
            self._add("answer", delta)
        elif isinstance(kind, str) and kind.startswith("response.reasoning") and kind.endswith(".delta"):
            self._add("reasoning", delta)
        elif kind == "response.function_call_arguments.delta":
            self._add("tool calls", delta)
        elif kind == "content_block_start":
            self._block(event.get("content_block"))
        elif kind in (None, "message"):
            for block in _listed(event.get("content")) + _listed(event.get("output")):
                self._block(block)

    def _block(self, block: Any) -> None:
        if not isinstance(block, dict):
            return
        if block.get("type") in ("tool_use", "function_call"):
            self._add("tool calls", _call(block))
        elif block.get("type") in ("thinking", "reasoning"):
            self._add("reasoning", _text(block))
        else:
            self._add("answer", _text({name: block.get(name) for name in ("text", "content")}))

    def _delta(self, delta: Any) -> None:
        if not isinstance(delta, dict):
            return
        self._add("reasoning", delta.get("reasoning_content") or delta.get("reasoning") or delta.get("thinking"))
        self._add("answer", delta.get("content") or delta.get("text"))
        self._add("tool calls", delta.get("partial_json"))
        for call in _listed(delta.get("tool_calls")):
            function = call.get("function") if isinstance(call, dict) else None
            if isinstance(function, dict):
                self._add("tool calls", function.get("name"))
                self._add("tool calls", function.get("arguments"))

    def _add(self, kind: str, text: Any) -> None:
        if isinstance(text, str) and text:
            self._texts[kind].append(text)


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []

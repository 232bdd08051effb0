"""What scripted engines are told to answer: a model's tool call, in the shapes of the two APIs."""

from __future__ import annotations

from typing import Any

ENDLESS = 4000
"""Tokens that take longer to write than any test here, and fit into a slot."""

CALL: dict[str, Any] = {
    "id": "1",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [
        {
            "index": 0,
            "finish_reason": "tool_calls",
            "message": {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {
                        "id": "call_1",
                        "type": "function",
                        "function": {"name": "weather", "arguments": '{"city":"Oslo"}'},
                    }
                ],
            },
        }
    ],
    "usage": {"prompt_tokens": 9, "completion_tokens": 5, "total_tokens": 14},
}
"""A whole answer of /v1/chat/completions."""

WORD = (
    b'data: {"id":"1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":%b}]}\n\n'
)
"""One chunk of it, streamed."""

DELTAS = (
    b'{"role":"assistant","content":null}',
    b'{"tool_calls":[{"index":0,"id":"call_1","type":"function","function":{"name":"weather","arguments":""}}]}',
    b'{"tool_calls":[{"index":0,"function":{"arguments":"{\\"city\\":"}}]}',
    b'{"tool_calls":[{"index":1,"id":"call_2","type":"function","function":{"name":"clock","arguments":"{}"}}]}',
    b'{"tool_calls":[{"index":0,"function":{"arguments":"\\"Oslo\\"}"}}]}',
)
"""Two calls, one in pieces and the other between them."""

MESSAGE: dict[str, Any] = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "m",
    "content": [{"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Oslo"}}],
    "stop_reason": "tool_use",
    "stop_sequence": None,
    "usage": {"input_tokens": 9, "output_tokens": 5},
}
"""A whole answer of /v1/messages."""

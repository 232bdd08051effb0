"""OpenAI's own client, and the models of the nodes that it speaks to."""

from __future__ import annotations

from typing import Any

import openai
from http_node import Node

REAL, EMBEDS = "tiny", "tiny-embeddings"
SCRIPTED, FAKE = "scripted", "fake"
QUEUE_MAX = 20


def base_url(node: Node) -> str:
    return f"http://{node.host}:{node.port}/v1"


def client(node: Node, **more: Any) -> openai.OpenAI:
    """OpenAI's client as a user makes it. It tries once, unless `more` says otherwise."""
    http = openai.DefaultHttpxClient(trust_env=False)
    return openai.OpenAI(base_url=base_url(node), api_key="any", http_client=http, **{"max_retries": 0, **more})


def async_client(node: Node) -> openai.AsyncOpenAI:
    http = openai.DefaultAsyncHttpxClient(trust_env=False)
    return openai.AsyncOpenAI(base_url=base_url(node), api_key="any", http_client=http, max_retries=0)

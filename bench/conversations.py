"""Conversations with real llama-servers behind one node: how many turns find their cache, without any header."""

from __future__ import annotations

import asyncio
import json
import random
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from bench import programs
from bench.cores import Cores
from bench.programs import Program
from viiwork_core.testing.tiny_model import WORDS, write_gguf

BACKENDS, SLOTS = 4, 4
SESSIONS, TURNS = 16, 8
OPENING, GROWTH, ANSWER = 600, 120, 40
"""Tokens of the first prompt, alike for all sessions, of each turn, and of an answer."""

WARM = 0.8
"""Share of the context before that a turn must reuse to count."""


@contextmanager
def fleet(policy: str, folder: Path, cores: Cores) -> Iterator[Program]:
    """A node with four llama-servers on the tiny model, under a routing policy."""
    folder.mkdir()
    gguf = write_gguf(folder / "tiny.gguf")
    # One backend a card, and no cards: each runs on the CPU.
    model = {"name": programs.MODEL, "engine": "llamacpp", "path": str(gguf), "gpus": list(range(BACKENDS))}
    models, none = [{**model, "context": 8192, "parallel": SLOTS}], {"vendor": "none"}
    with programs.serving(models, folder, cores, routing={"policy": policy}, gpu=none) as node:
        yield node


async def warm_share(node: Program, seed: int) -> float:
    """Percent of the turns after the first that reuse 80 % of the context before. All sessions talk at once."""
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{node.port}", timeout=120) as client:
        sessions = (_converse(client, random.Random(f"{seed} {number}")) for number in range(SESSIONS))  # noqa: S311  # no secret
        found = [warm for turns in await asyncio.gather(*sessions) for warm in turns]
    return 100 * sum(found) / len(found)


async def _converse(client: httpx.AsyncClient, chance: random.Random) -> list[bool]:
    opening = random.Random("the opening").choices(WORDS, k=OPENING)  # noqa: S311  # keeps no secret
    messages: list[dict[str, str]] = [{"role": "system", "content": " ".join(opening)}]
    warm, before = [], 0
    for turn in range(TURNS):
        words = ["begin"] if turn == 0 else chance.choices(WORDS, k=GROWTH)
        messages.append({"role": "user", "content": " ".join(words)})
        answer, usage = await _ask(client, messages, chance.randrange(1 << 30))
        messages.append({"role": "assistant", "content": answer})
        if turn:
            warm.append(usage["prompt_tokens_details"]["cached_tokens"] >= WARM * before)
        before = usage["prompt_tokens"] + usage["completion_tokens"]
    return warm


async def _ask(client: httpx.AsyncClient, messages: list[dict[str, str]], seed: int) -> tuple[str, dict[str, Any]]:
    """One turn, streamed: the text and the usage."""
    body = {"model": programs.MODEL, "messages": messages, "max_tokens": ANSWER, "seed": seed, "temperature": 1.0}
    body |= {"stream": True, "stream_options": {"include_usage": True}}
    text, usage = "", dict[str, Any]()
    async with client.stream("POST", "/v1/chat/completions", json=body) as answer:
        answer.raise_for_status()
        async for line in answer.aiter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line[6:])
            text += "".join(choice["delta"].get("content") or "" for choice in event["choices"])
            usage = event.get("usage") or usage
    return text, usage


def measured(cores: Cores) -> tuple[float, float]:
    """Shares with fastest and with round_robin, one after the other."""
    shares = []
    for policy in ("fastest", "round_robin"):
        with (
            tempfile.TemporaryDirectory(prefix="viiwork-bench-") as name,
            fleet(policy, Path(name) / "a", cores) as node,
        ):
            shares.append(asyncio.run(warm_share(node, seed=1)))
    return shares[0], shares[1]

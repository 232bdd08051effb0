"""A session that is told where each of its turns runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from mesh import FIRST, Mesh
from nodes import Message, Node, Reply, until, user

WARM, COLD = 0.9, 0.1
LONG = 3000
"""Tokens: the cache has over a MiB, so it takes several frames to send."""


@dataclass
class Conversation:
    """Turns of one session, all entered at the first node."""

    mesh: Mesh
    session: str
    messages: list[Message] = field(default_factory=list)

    @property
    def key(self) -> str:
        return self.mesh.session_key(self.session)

    def say(self, text: str, *, on: str) -> Reply:
        """One turn, on the node of that name."""
        self.messages.append(user(text))
        reply = self.mesh.first.chat(self.messages, host=on, session=self.session)
        self.messages.append({"role": "assistant", "content": reply.text})
        assert reply.headers["x-viiwork-node"] == on
        return reply

    def afresh(self) -> str:
        """What the first node writes for the newest turn when it reads all of it.

        Not what a warm turn writes: whether tokens are read one by one or many at a time makes small differences.
        """
        messages = self.messages[:-1]
        reply = self.mesh.first.chat(messages, host=FIRST, cache_prompt=False)
        assert reply.warmth == 0
        return reply.text

    def arrived(self, node: Node, turn: int, within: float = 20.0) -> Path:
        """The file of that turn's cache at `node`, waited for."""

        def found() -> Path | None:
            newest, file = node.replicas().get(self.key, (0, None))
            return file if newest == turn else None

        return until(found, f"turn {turn} of {self.session} is at {node.name}", within)

"""What agents ask, turn after turn."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Protocol

import msgspec

from viiwork_core.simulation.scenario import AgentModel


class Source(Protocol):
    """Where the prompts of one client come from."""

    def next(self) -> Prompt | None:
        """The next prompt; None: there is none any more."""
        ...

    def think(self) -> float:
        """Seconds from an answer to the next prompt."""
        ...


@dataclass(frozen=True, slots=True)
class Prompt:
    """One turn's request."""

    agent: int
    epoch: int
    number: int
    """Of the turn, from 1, over all epochs."""

    tokens: int
    answer: int
    """Tokens that the answer will have."""

    before: int | None
    """Tokens of the context after the turn before; None: the history was compacted since, or this is the first."""

    messages: tuple[msgspec.Raw, ...]
    """As small as can be told apart: only how they follow each other counts."""

    @property
    def reply(self) -> str:
        """The text of the answer."""
        return f"answer {self.agent}.{self.epoch}.{self.number}"


class History:
    """The messages of one agent, turn after turn."""

    def __init__(self, agent: int) -> None:
        self._agent = agent
        self._epoch = 0
        self._messages: list[msgspec.Raw] = []

    def prompt(self, turn: int, tokens: int, answer: int, *, before: int | None, anew: bool = False) -> Prompt:
        """The request of a turn, after which the history goes on with the answer. `anew`: it was compacted."""
        if anew or not self._messages:
            self._epoch += anew
            task = f"summary {self._agent}.{self._epoch}" if anew else "the task"
            self._messages = [_message("system", "the opening"), _message("user", task)]
        else:
            self._messages.append(_message("user", f"{self._agent}.{self._epoch}.{turn}"))
        prompt = Prompt(self._agent, self._epoch, turn, tokens, answer, before, tuple(self._messages))
        self._messages.append(_message("assistant", prompt.reply))
        return prompt


class Agent:
    """One agent. It sends a prompt, waits for the answer, thinks, and sends the next."""

    def __init__(self, number: int, model: AgentModel, rng: random.Random) -> None:
        self._model = model
        self._rng = rng
        self._history = History(number)
        self._turn = 0
        self._context = 0

    def next(self) -> Prompt | None:
        """The next prompt. It never has enough."""
        self._turn += 1
        first, anew = self._turn == 1, self._context > self._model.limit
        before = None if first or anew else self._context
        if before is None:
            self._context = self._model.opening if first else self._model.compacted
        else:
            self._context += self._draw(self._model.growth)
        answer = self._draw(self._model.answer)
        prompt = self._history.prompt(self._turn, self._context, answer, before=before, anew=anew)
        self._context += answer
        return prompt

    def think(self) -> float:
        """Seconds until the next prompt."""
        return self._spread(self._model.think_s)

    def _draw(self, median: int) -> int:
        return max(1, round(self._spread(median)))

    def _spread(self, median: float) -> float:
        return median * math.exp(self._model.spread * self._rng.gauss(0, 1))


def _message(role: str, text: str) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode({"role": role, "content": text}))

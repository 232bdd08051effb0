"""What an engine keeps of conversations, and how long it takes to read what it has not."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from viiwork_core.simulation.scenario import HostModel


@dataclass(frozen=True, slots=True)
class Content:
    """One conversation in a cache."""

    agent: int
    epoch: int
    """Counts the compactions: another history."""

    tokens: int

    def shares(self, prompt: Content, opening: int) -> int:
        """Tokens that both begin with."""
        if (self.agent, self.epoch) == (prompt.agent, prompt.epoch):
            return min(self.tokens, prompt.tokens)
        return min(opening, self.tokens, prompt.tokens)


class SimulatedEngine:
    """One backend's caches."""

    def __init__(self, model: HostModel, opening: int) -> None:
        """`opening`: tokens that all conversations begin with."""
        self._model = model
        self._opening = opening
        self.slots: list[Content | None] = [None] * model.slots
        self._busy = [False] * model.slots
        self._parked: OrderedDict[int, Content] = OrderedDict()

    def begin(self, prompt: Content, pinned: int | None) -> tuple[int, int, float]:
        """Start a prompt: the slot, the tokens that are reused, and the seconds to the first token."""
        slot = self._choose(prompt) if pinned is None or not self._model.pinned else pinned
        self._busy[slot] = True
        held, took = self.slots[slot], self._model.overhead_s
        if held is not None and held.agent != prompt.agent:
            self._park(held)
        parked = self._parked.get(prompt.agent)
        cached = held.shares(prompt, self._opening) if held else 0
        if parked is not None and (better := parked.shares(prompt, self._opening)) > cached:
            cached, took = better, took + self._model.unpark_s
        self._parked.pop(prompt.agent, None)
        # An engine reads at least the last token, to have something to go on from.
        cached = min(cached, max(0, prompt.tokens - 1))
        return slot, cached, took + (prompt.tokens - cached) / self._model.prefill_tps

    def restore(self, slot: int, content: Content) -> None:
        """Put a cache from elsewhere into an idle slot. What that held is parked."""
        held = self.slots[slot]
        if held is not None and held.agent != content.agent:
            self._park(held)
        self._parked.pop(content.agent, None)
        self.slots[slot] = content

    def end(self, slot: int, content: Content) -> None:
        """The answer is complete: what the slot holds now."""
        self._busy[slot] = False
        self.slots[slot] = content

    def where(self, agent: int, epoch: int) -> tuple[int | None, int] | None:
        """The slot that holds a history (None: it is parked), and the tokens."""
        for slot, held in enumerate(self.slots):
            if held is not None and (held.agent, held.epoch) == (agent, epoch):
                return slot, held.tokens
        parked = self._parked.get(agent)
        return (None, parked.tokens) if parked is not None and parked.epoch == epoch else None

    def _choose(self, prompt: Content) -> int:
        """As llama-server does: the idle slot that shares most with the prompt, else the one silent for longest."""
        idle = [slot for slot, busy in enumerate(self._busy) if not busy]
        return max(idle, key=lambda slot: self._shared(slot, prompt))

    def _shared(self, slot: int, prompt: Content) -> tuple[int, int]:
        held = self.slots[slot]
        if held is None:
            return 0, 1
        shared = held.shares(prompt, self._opening)
        # Less than a tenth in common is no reason to take that slot.
        return (shared, 0) if shared > prompt.tokens / 10 else (0, 0)

    def _park(self, content: Content) -> None:
        if not self._model.parked:
            return
        self._parked[content.agent] = content
        self._parked.move_to_end(content.agent)
        while len(self._parked) > self._model.parked:
            self._parked.popitem(last=False)


def answered(model: HostModel, tokens: int) -> float:
    """Seconds that an answer takes after its first token."""
    return tokens / model.decode_tps

"""The double's engine: requests in the order of arrival, the conversations it holds, and its death."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum

from viiwork_strata.testing.answer import ANSWER_TOKENS, Answer, most_tokens, thinks, wants_json
from viiwork_strata.testing.conversation import Conversation, tokenize
from viiwork_strata.testing.fifo import Fifo
from viiwork_strata.testing.refusal import Refusal
from viiwork_strata.testing.settings import Settings

_STEP_S = 0.02


class EngineDied(Exception):
    """The engine ended while it served a request."""


class EngineState(StrEnum):
    """What the server knows of its engine's process."""

    RUNNING = "running"
    UNLOADED = "unloaded"
    DEAD = "dead"


@dataclass(slots=True, eq=False)
class Slot:
    """A place for a conversation. Without a batch there is one."""

    id: int
    conversation: Conversation = field(default_factory=Conversation)
    held: int = 0
    """The prompt's tokens, while it runs and afterwards."""

    busy: bool = False
    used: float = 0.0


class Machine:
    """What is behind the double's HTTP interface. Its methods take their turn in the FIFO where they must."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.fifo = Fifo(settings.slots)
        self.phase = ""
        self.answer: Answer | None = None
        self.started = time.time()
        self.requests = 0
        self.places = [Slot(number) for number in range(settings.slots)]
        self._state = EngineState.UNLOADED if settings.lazy else EngineState.RUNNING
        self._used_at = time.monotonic()
        self._faults = {"die": settings.die_after, "silence": settings.silent_after, "crash": settings.crash_after}
        self._starting = threading.Lock()
        self._choosing = threading.Lock()

    @property
    def state(self) -> EngineState:
        """Also unloads an engine that has had nothing to do for too long."""
        idle = not self.fifo.busy and time.monotonic() - self._used_at > self.settings.idle_seconds
        if self._state is EngineState.RUNNING and self.settings.idle_seconds and idle:
            self._forget(EngineState.UNLOADED)
        return self._state

    @property
    def loaded(self) -> bool:
        return self.state is EngineState.RUNNING

    def die(self) -> None:
        """The engine's process ends, and all that it held is lost; the server stays."""
        self._forget(EngineState.DEAD)

    def load(self) -> None:
        """Start the engine, which takes as long as the first time."""
        with self._starting:
            if not self.loaded:
                time.sleep(self.settings.load_seconds)
                self._used_at = time.monotonic()
                self._state = EngineState.RUNNING

    def unload(self) -> str:
        """What became of it. Raises Refusal (409) while it is at work."""
        if self.fifo.busy:
            raise Refusal(409, "the model is busy", type_="model_busy")
        if not self.loaded:
            return "not loaded"
        self._forget(EngineState.UNLOADED)
        return "unloaded"

    def _forget(self, state: EngineState) -> None:
        self._state = state
        for slot in self.places:
            slot.conversation, slot.held = Conversation(), 0

    @contextmanager
    def turn(self) -> Iterator[Slot]:
        """A request's turn. An engine that does not run is started first, and whoever waits goes on waiting."""
        with self.fifo.turn():
            self.load()
            slot = self._take()
            try:
                yield slot
            finally:
                slot.busy, slot.used = False, time.monotonic()
                self._used_at = time.monotonic()

    def _take(self) -> Slot:
        with self._choosing:
            slot = min((one for one in self.places if not one.busy), key=lambda one: one.used)
            slot.busy = True
            self.requests += 1
            return slot

    def read(self, slot: Slot, request: Mapping[str, object]) -> Answer:
        """Read a chat request's prompt; the caller holds the turn. Raises Refusal, EngineDied."""
        messages = request.get("messages")
        if not isinstance(messages, list) or not messages or not all(isinstance(one, dict) for one in messages):
            raise Refusal(400, "messages must be a list of objects, and not empty")
        prompt = tokenize(messages, request.get("tools"))
        most, thinking = most_tokens(request, self.settings.max_context - len(prompt)), thinks(request)
        self._bring(slot, prompt)
        self.phase, slot.held = "reading the prompt", len(prompt)
        started = time.perf_counter()
        cached = slot.conversation.read(prompt)
        self._meet_fault(0)
        if wants_json(request):
            raise Refusal(502, "the answer is not the JSON that was asked for", type_="structured_output_failed")
        answer = Answer(len(prompt), cached, most, thinking=thinking, started=started)
        answer.read_s = time.perf_counter() - started
        self.answer = answer
        return answer

    def _bring(self, slot: Slot, prompt: list[int]) -> None:
        """The conversation that the prompt goes on with, out of an idle slot of the batch."""
        with self._choosing:
            others = [one for one in self.places if not one.busy and one.conversation.point.precedes(prompt)]
            best = max((slot, *others), key=lambda one: _shared(one.conversation, prompt))
            slot.conversation, best.conversation = best.conversation, slot.conversation
            best.held = len(best.conversation.tokens)

    def write(self, slot: Slot, answer: Answer, gone: Callable[[], bool]) -> Iterator[str | None]:
        """The answer's pieces, until it ends or the client is gone; None: nothing has come for a while. The caller
        holds the turn. Raises EngineDied."""
        self.phase = "answering"
        while answer.generated < min(answer.most, ANSWER_TOKENS):
            yield from self._silence(answer.generated, gone)
            time.sleep(self.settings.token_seconds)
            if gone():
                answer.finish = "cancel"
                return
            piece = slot.conversation.write()
            answer.generated += 1
            answer.tail = (answer.tail + piece)[-80:]
            yield piece
            self._meet_fault(answer.generated)
        if answer.most < ANSWER_TOKENS:
            answer.finish = "length"
        else:
            slot.conversation.end()

    def _meet_fault(self, tokens: int) -> None:
        """Each fault happens once, to the first request that gets so far."""
        if self._due("crash", tokens):
            self.settings.crash()
        if self._due("die", tokens):
            self.die()
        if self._state is not EngineState.RUNNING:
            raise EngineDied("the engine ended unexpectedly")

    def _due(self, fault: str, tokens: int) -> bool:
        due = self._faults[fault] == tokens
        if due:
            self._faults[fault] = None
        return due

    def _silence(self, tokens: int, gone: Callable[[], bool]) -> Iterator[None]:
        """The engine says nothing, until it is killed for it."""
        if not self._due("silence", tokens):
            return
        began = told = time.monotonic()
        while not gone():
            time.sleep(_STEP_S)
            now = time.monotonic()
            if now - told >= self.settings.keep_alive_seconds:
                told = now
                yield None
            if self.settings.silence_seconds and now - began >= self.settings.silence_seconds:
                self.die()
            if self._state is not EngineState.RUNNING:
                raise EngineDied("the engine said nothing for too long")


def _shared(conversation: Conversation, prompt: list[int]) -> int:
    """Tokens of the prompt that the conversation holds."""
    return len(conversation.tokens) if conversation.point.precedes(prompt) else 0

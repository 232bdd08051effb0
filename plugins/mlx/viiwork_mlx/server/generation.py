"""The generation thread: mlx_lm's, with turns that know their session and client, and with work between turns."""

# mypy: allow-untyped-calls, allow-subclassing-any

from __future__ import annotations

import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from mlx_lm.models.cache import LRUPromptCache
from mlx_lm.server import CompletionRequest, ResponseGenerator

from viiwork_mlx.server.model import ServedModel
from viiwork_mlx.server.seats import WATCH_EVERY, Client, ClientGone
from viiwork_mlx.server.sessions import Sessions

T = TypeVar("T")

SETTLE_LIMIT = 30.0
"""Seconds after which an abandoned turn's seat is given away, whether or not the generation thread let go."""


class KvRefused(Exception):
    """A save or restore that cannot be done; `status` is its HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass
class Turn(CompletionRequest):
    """A request with what mlx_lm does not ask for."""

    client: Client = field(kw_only=True)
    session: str | None = field(kw_only=True)
    context: Any = field(default=None, init=False)
    """mlx_lm's GenerationContext, once the generation thread took the turn."""

    def stop(self) -> None:
        if self.context is not None:
            self.context.stop()


@dataclass
class Job(Generic[T]):
    """Work for the generation thread. Errors other than these two are faults, and end the process."""

    work: Callable[[], T]
    future: Future[T] = field(default_factory=Future)

    def run(self) -> None:
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            self.future.set_result(self.work())
        except (KvRefused, OSError) as error:
            self.future.set_exception(error)


class Generation(ResponseGenerator):
    """Everything that touches MLX runs in this one thread: the prompt cache has no locks, and MLX's streams belong to
    the thread that made them."""

    def __init__(self, model: ServedModel, prompt_cache: LRUPromptCache, ended: Callable[[], None]) -> None:
        self.served = model
        self.sessions = Sessions(prompt_cache.max_size)
        self.failure: BaseException | None = None
        self._ended = ended
        self._here = threading.local()
        super().__init__(model, prompt_cache)

    def _run_generate(self) -> None:
        """mlx_lm's server lives on without its generation thread, and answers nothing; this one ends with it."""
        try:
            self._generate()
        finally:
            self.failure = sys.exc_info()[1]
            self._generation_failed = self.failure is not None
            self._ended()

    def _next_request(self, timeout: float | None = None) -> Any:
        """Called by the generation thread between two steps."""
        entry = super()._next_request(timeout)
        if isinstance(entry, Job):
            entry.run()
            return None
        if entry is not None and entry[1].client.gone():
            entry[0].put(ClientGone())
            return None
        return entry

    def generate(
        self,
        request: CompletionRequest,
        generation_args: Any,
        progress_callback: Callable[[int, int], None] | None = None,
    ) -> tuple[Any, Iterator[Any]]:
        """Called by the handler's thread. Not to be given up before the generation thread took the turn: only then
        can it be stopped."""
        assert isinstance(request, Turn)
        request.context, responses = super().generate(request, generation_args, progress_callback)
        return request.context, self._followed(request, responses)

    def _followed(self, turn: Turn, responses: Iterator[Any]) -> Iterator[Any]:
        self._here.client = turn.client
        ids = list(turn.context.prompt)
        for response in responses:
            ids.append(response.token)
            yield response
        if turn.session is not None:
            self.sessions.remember(turn.session, ids)

    def _await_response(self, response_queue: queue.Queue[Any]) -> Any:
        """mlx_lm's waits for the generation thread only, and so generates to the end for a client that left."""
        client: Client | None = getattr(self._here, "client", None)
        while True:
            if client is not None and client.gone():
                raise ClientGone
            try:
                return response_queue.get(timeout=WATCH_EVERY)
            except queue.Empty:
                if not self.generation_available():
                    raise RuntimeError("generation thread died") from None

    def run(self, work: Callable[[], T], client: Client) -> T:
        """Run `work` in the generation thread, between two steps, and return its result.

        Raises what it raises, and ClientGone when the client leaves before its turn came: then it does not run.
        """
        job = Job(work)
        self.requests.put(job)
        while True:
            try:
                return job.future.result(timeout=WATCH_EVERY)
            except TimeoutError:
                if not self.generation_available():
                    raise KvRefused(503, "the generation thread died") from None
                if client.gone() and job.future.cancel():
                    raise ClientGone from None

    def settle(self) -> None:
        """Wait until the generation thread has let go of turns that were stopped before this call.

        It looks at them at the end of a step, and takes jobs before one: after the second job, it has.
        """
        deadline = time.monotonic() + SETTLE_LIMIT
        for _ in range(2):
            job = Job(lambda: None)
            self.requests.put(job)
            while not job.future.done() and self.generation_available() and time.monotonic() < deadline:
                job_wait(job, WATCH_EVERY)


def job_wait(job: Job[Any], seconds: float) -> None:
    """Return when the job is done or the time is over."""
    try:
        job.future.result(timeout=seconds)
    except TimeoutError:
        return

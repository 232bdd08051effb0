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

import mlx.core as mx
from mlx_lm.server import CompletionRequest, ResponseGenerator

from viiwork_mlx.server.body import BadRequest
from viiwork_mlx.server.figures import Figures
from viiwork_mlx.server.memory import room
from viiwork_mlx.server.model import ServedModel
from viiwork_mlx.server.prompt_cache import PromptCache
from viiwork_mlx.server.sampling import try_out
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

    status: int | None = field(default=None, init=False)
    """HTTP status of a turn that failed before its first token; mlx_lm answers 404 whatever it was."""

    outcome: str = field(default="failed", init=False)
    """See figures.OUTCOMES."""

    def stop(self) -> None:
        if self.context is not None:
            self.context.stop()


class WatchedQueue:
    """Where mlx_lm's thread puts the progress of a turn that it serves alone: a stopped turn's prompt is not read on.

    mlx_lm itself looks after a token only. In a batch it looks after each chunk, and nothing may be raised there.
    """

    def __init__(self, answers: queue.Queue[Any], turn: Turn) -> None:
        self._answers = answers
        self._turn = turn

    def put(self, item: Any) -> None:
        if isinstance(item, tuple) and self._turn.client.gone():
            raise ClientGone
        self._answers.put(item)


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

    def __init__(
        self, model: ServedModel, prompt_cache: PromptCache, context: int | None, ended: Callable[[], None]
    ) -> None:
        self.served = model
        self.sessions = Sessions(prompt_cache.max_size)
        self.figures = Figures()
        self._context = context
        self.failure: BaseException | None = None
        self._ended = ended
        self._here = threading.local()
        model.loaded = self._bound
        super().__init__(model, prompt_cache)

    def _bound(self) -> None:
        """Bound the prompt cache where the operator did not. mlx_lm counts running requests too, when one comes."""
        arguments = self.served.cli_args
        if arguments.prompt_cache_bytes is None:
            limit = room(mx.device_info(), mx.get_active_memory())
            if limit is not None:
                arguments.prompt_cache_bytes = self.prompt_cache.max_bytes = limit

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

    def _tokenize(self, tokenizer: Any, request: Any, args: Any) -> Any:
        """Called by the generation thread, and the one place where it takes an error as the request's own. So all
        that might break behind it is tried here."""
        found = super()._tokenize(tokenizer, request, args)
        ids = found[0]
        if not isinstance(ids, list) or not ids:
            raise BadRequest("the prompt is empty")
        self._fit(len(ids), args)
        self._make_state_machine(self.served.model_key, tokenizer, args.stop_words)
        try_out(args, self.served.vocabulary)
        return found

    def _fit(self, prompt: int, args: Any) -> None:
        """Let prompt and answer together be no longer than a slot's context."""
        if self._context is None:
            return
        if prompt >= self._context:
            raise BadRequest(f"the prompt has {prompt} tokens and exceeds the available context size ({self._context})")
        args.max_tokens = min(args.max_tokens, self._context - prompt)

    def _serve_single(self, request: Any, stream: Any) -> None:
        answers, turn, arguments = request
        super()._serve_single((WatchedQueue(answers, turn), turn, arguments), stream)

    def generate(
        self,
        request: CompletionRequest,
        generation_args: Any,
        progress_callback: Callable[[int, int], None] | None = None,
    ) -> tuple[Any, Iterator[Any]]:
        """Called by the handler's thread. Not to be given up before the generation thread took the turn: only then
        can it be stopped."""
        assert isinstance(request, Turn)
        started = time.monotonic()
        try:
            request.context, responses = super().generate(request, generation_args, progress_callback)
        except ClientGone:
            request.outcome = "left"
            raise
        except Exception:  # whatever it is, mlx_lm answers with its words, and the status is ours
            request.status = 400 if self.generation_available() else 503
            raise
        return request.context, self._followed(request, responses, started)

    def _followed(self, turn: Turn, responses: Iterator[Any], started: float) -> Iterator[Any]:
        self._here.client = turn.client
        ids = list(turn.context.prompt)
        first = None
        for response in responses:
            first = first or time.monotonic()
            ids.append(response.token)
            yield response
        self._count(turn, len(ids), started, first or time.monotonic())
        if turn.session is not None:
            self.sessions.remember(turn.session, ids)

    def _count(self, turn: Turn, tokens: int, started: float, first: float) -> None:
        turn.outcome = "finished"
        prompt = len(turn.context.prompt)
        self.figures.add("prompt_tokens", prompt)
        self.figures.add("cached_tokens", max(turn.context.prompt_cache_count, 0))
        self.figures.add("generated_tokens", tokens - prompt)
        self.figures.add("prompt_seconds", first - started)
        self.figures.add("generation_seconds", time.monotonic() - first)

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

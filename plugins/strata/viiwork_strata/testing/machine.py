"""The double's engine: one request at a time in the order of arrival, one live conversation, session files."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from viiwork_strata.testing import session_store
from viiwork_strata.testing.conversation import Conversation, tokenize
from viiwork_strata.testing.refusal import Refusal
from viiwork_strata.testing.settings import Settings

ANSWER_TOKENS = 24
"""An answer ends by itself after so many tokens."""

_FORBIDDEN = set('/\\:*?"<>|')
_MAX_NAME_BYTES = 200


class Fifo:
    """Lets threads through one at a time, in the order in which they came."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._tickets = 0
        self._serving = 0

    @property
    def waiting(self) -> int:
        """How many wait behind the one that is served."""
        return max(0, self._tickets - self._serving - 1)

    @property
    def busy(self) -> bool:
        return self._tickets > self._serving

    @contextmanager
    def turn(self) -> Iterator[None]:
        with self._changed:
            ticket = self._tickets
            self._tickets += 1
            self._changed.wait_for(lambda: self._serving == ticket)
        try:
            yield
        finally:
            with self._changed:
                self._serving += 1
                self._changed.notify_all()


@dataclass(slots=True)
class Answer:
    """One chat request's figures. `finish` is "stop", "length" or "cancel"."""

    prompt: int
    cached: int
    most: int
    generated: int = 0
    finish: str = "stop"
    started: float = field(default_factory=time.perf_counter)
    read_s: float = 0.0
    tail: str = ""

    @property
    def usage(self) -> dict[str, object]:
        return {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.generated,
            "total_tokens": self.prompt + self.generated,
            "prompt_tokens_details": {"cached_tokens": self.cached},
        }

    @property
    def timings(self) -> dict[str, object]:
        """Under llama.cpp's names, milliseconds."""
        write_s = time.perf_counter() - self.started - self.read_s
        return {
            "cache_n": self.cached,
            "prompt_n": self.prompt - self.cached,
            "prompt_ms": self.read_s * 1000,
            "predicted_n": self.generated,
            "predicted_ms": write_s * 1000,
        }


class Machine:
    """What stands behind the double's HTTP interface. Its methods take their turn in the FIFO where they must."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.fifo = Fifo()
        self.phase = ""
        self.answer: Answer | None = None
        self._conversation = Conversation()
        self._held = 0

    def slots(self) -> list[dict[str, object]]:
        """The prompt's count is kept after the request ends."""
        n_ctx = self.settings.max_context
        return [{"id": 0, "n_ctx": n_ctx, "is_processing": self.fifo.busy, "n_prompt_tokens": self._held}]

    def status(self) -> dict[str, object]:
        """Idle, it keeps the last request's figures."""
        last = self.answer or Answer(0, 0, 0)
        return {
            "busy": self.fifo.busy,
            "queued": self.fifo.waiting,
            "phase": self.phase,
            "prompt_tokens": last.prompt,
            "generated": last.generated,
            "max_tokens": last.most,
            "tool": None,
            "tail": last.tail,
        }

    def read(self, request: Mapping[str, object]) -> Answer:
        """Read a chat request's prompt; the caller holds the turn. Raises Refusal (400)."""
        messages = request.get("messages")
        if not isinstance(messages, list) or not messages or not all(isinstance(one, dict) for one in messages):
            raise Refusal(400, "messages must be a list of objects, and not empty")
        prompt = tokenize(messages, request.get("tools"))
        most = self._most(request, len(prompt))
        self.phase, self._held = "reading the prompt", len(prompt)
        started = time.perf_counter()
        answer = Answer(len(prompt), self._conversation.read(prompt), most, started=started)
        answer.read_s = time.perf_counter() - started
        self.answer = answer
        return answer

    def _most(self, request: Mapping[str, object], prompt: int) -> int:
        room = self.settings.max_context - prompt
        asked = request.get("max_tokens") or request.get("max_completion_tokens") or min(room, ANSWER_TOKENS)
        if not isinstance(asked, int) or asked < 1:
            raise Refusal(400, "max_tokens must be a positive whole number")
        if asked > room:
            said = f"{prompt} prompt tokens and {asked} new ones do not fit into {self.settings.max_context}"
            raise Refusal(400, said)
        return asked

    def write(self, answer: Answer, gone: Callable[[], bool]) -> Iterator[str]:
        """The answer's pieces, until it ends or the client is gone; the caller holds the turn."""
        self.phase = "answering"
        while answer.generated < min(answer.most, ANSWER_TOKENS):
            time.sleep(self.settings.token_seconds)
            if gone():
                answer.finish = "cancel"
                return
            piece = self._conversation.write()
            answer.generated += 1
            answer.tail = (answer.tail + piece)[-80:]
            yield piece
        if answer.most < ANSWER_TOKENS:
            answer.finish = "length"
        else:
            self._conversation.end()

    def session(self, slot: str, action: str | None, name: object) -> dict[str, object]:
        """Save or restore, with the checks in the server's order. Raises Refusal."""
        folder = self._slot_folder()
        if slot != "0":
            raise Refusal(400, f"no slot {slot}: only slot 0 exists")
        if action not in ("save", "restore"):
            raise Refusal(400, f"unknown action {action}")
        path = folder / _checked_name(name)
        if action == "restore" and not path.is_symlink() and not path.exists():
            raise Refusal(404, f"no session file {path.name}")
        with self.fifo.turn():
            if not self.settings.one_stage:
                raise Refusal(400, "sessions need one GPU stage and a prompt cache", kind="invalid")
            return self._save(path) if action == "save" else self._restore(path)

    def _slot_folder(self) -> Path:
        if self.settings.slot_dir is None:
            raise Refusal(501, "session files are off: start the server with --slot-save-path DIR")
        if self.settings.batch:
            raise Refusal(501, "session files are not supported with parallel or batch slots")
        return self.settings.slot_dir

    def _save(self, path: Path) -> dict[str, object]:
        self.phase, started = "saving the session", time.perf_counter()
        if not self._conversation.tokens:
            raise Refusal(400, "there is no complete session to save", kind="invalid")
        data = session_store.pack(self._conversation, self.settings.identity)
        session_store.save(path, data)
        counts = {"n_saved": len(self._conversation.tokens), "n_written": len(data)}
        return {"id_slot": 0, "filename": path.name, **counts, "timings": {"save_ms": _ms_since(started)}}

    def _restore(self, path: Path) -> dict[str, object]:
        self.phase, started = "restoring a session", time.perf_counter()
        data = session_store.load(path)
        self._conversation = session_store.unpack(data, self.settings.identity, self.settings.max_context)
        self._held = len(self._conversation.tokens)
        counts = {"n_restored": self._held, "n_read": len(data)}
        return {"id_slot": 0, "filename": path.name, **counts, "timings": {"restore_ms": _ms_since(started)}}


def _ms_since(started: float) -> float:
    return (time.perf_counter() - started) * 1000


def _checked_name(name: object) -> str:
    """1 to 200 bytes, no control or path character, no dot in front, no dot or space at the end. Windows' device
    names, which Strata refuses too, are let through."""
    if not isinstance(name, str) or not 1 <= len(name.encode()) <= _MAX_NAME_BYTES:
        raise Refusal(400, "filename must be a string of 1 to 200 bytes")
    if not name.isprintable() or _FORBIDDEN & set(name) or name.startswith(".") or name.endswith((".", " ")):
        raise Refusal(400, "filename has a character that is not allowed there")
    return name

"""Moving the cache of one llama-server slot to another server, through the engine's own slot files."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

import msgspec

from viiwork_core import (
    Address,
    CacheFile,
    CacheLimits,
    CacheRefused,
    CacheTransfer,
    CacheUnsupported,
    ConfigError,
    Context,
    EngineRefused,
    Saved,
    SessionRef,
    Spec,
)
from viiwork_llamacpp import fingerprint
from viiwork_llamacpp.arguments import swa_full
from viiwork_llamacpp.build import read_build
from viiwork_llamacpp.cache_file import LlamaCacheFile, read_cache_file
from viiwork_llamacpp.fingerprint import Arguments
from viiwork_llamacpp.launch import Prepared, command_line, find_binary, model_files
from viiwork_llamacpp.model import read_model
from viiwork_llamacpp.options import LlamaCppOptions
from viiwork_llamacpp.server import LlamaServer, Slot


class LlamaCppCache(CacheTransfer):
    """Cache transfer of llama-server, slot by slot."""

    engine: ClassVar[str] = "llamacpp"
    limits: ClassVar[CacheLimits] = CacheLimits(replaces_live=True)

    def __init__(self, options: LlamaCppOptions, context: Context) -> None:
        super().__init__(options, context)
        self._options = options
        self._server = LlamaServer()

    async def __aenter__(self) -> Self:
        self._server.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._server.close()

    async def fingerprint(self, spec: Spec, address: Address) -> Mapping[str, str]:
        """From the command line as it will run, the operator's own arguments included."""
        binary = find_binary(self._options, spec.model)
        argv = command_line(spec, self._options, Prepared(binary=binary))
        path = Path(Arguments(argv).last("-m", "--model"))
        files = model_files(path, spec.model)
        await _require_movable(files, spec)
        return {
            "model": await fingerprint.model(files, self.context.digest),
            "state": await self._state_version(binary),
            "environment": fingerprint.environment(spec.env),
            "adapters": await fingerprint.adapters(argv, self.context.digest),
            **fingerprint.settings(argv),
        }

    async def _state_version(self, binary: str) -> str:
        build = await read_build(self.context.run_command, binary)
        return build.state_version or f"program {await fingerprint.program(Path(binary), self.context.digest)}"

    async def save(self, spec: Spec, address: Address, session: SessionRef, name: str) -> Saved:
        """Save the slot, and check that the file holds what the engine says it wrote."""
        slot, path = await self._idle_slot(address, session), _folder(spec) / name
        answer = await self._server.act(address, slot, "save", name)
        if not answer.n_saved:
            raise EngineRefused(f"llama-server saved nothing of slot {slot}: it is empty")
        file = await _file_of_engine(path)
        if file.tokens != answer.n_saved:
            raise EngineRefused(f"llama-server says it saved {answer.n_saved} tokens, the file holds {file.tokens}")
        if file.sliding and not swa_full(spec):
            raise CacheUnsupported(
                "this model has sliding-window layers, and a restored cache of them is not used",
                remedy="add --swa-full to the model's args (it takes more memory), or turn kv_share off for it",
            )
        return Saved(answer.n_saved, path.stat().st_size)

    async def restore(self, spec: Spec, address: Address, session: SessionRef, name: str) -> int:
        """Restore into the slot. A file that is not whole is never shown to the engine: some kill it."""
        file = await _file_of_engine(_folder(spec) / name)
        slot = await self._idle_slot(address, session)
        answer = await self._server.act(address, slot, "restore", name)
        if not answer.n_restored or answer.n_restored != file.tokens:
            raise EngineRefused(f"llama-server restored {answer.n_restored} of {file.tokens} tokens")
        return answer.n_restored

    async def holds(self, spec: Spec, address: Address, session: SessionRef) -> int | None:
        """What the slot's cache holds. After a restore the engine does not say until the slot has served a request."""
        return None if session.slot is None else (await self._slot(address, session)).n_prompt_tokens

    def read(self, path: Path) -> LlamaCacheFile:
        return read_cache_file(path)

    async def covers(
        self,
        spec: Spec,  # the contract's
        address: Address,
        file: CacheFile,
        path: str,
        body: bytes,
    ) -> int | None:
        """Compare the prompt's tokens, as the server would make them, with the file's."""
        if file.ids is None or (request := _request(body)) is None:
            return None
        if request.get("cache_prompt") is False:
            return 0
        try:
            ids = await self._prompt_ids(address, path, request, body)
        except EngineRefused:
            return None  # the request itself will be refused, in the engine's own words
        return None if ids is None else _usable(file, ids)

    async def _prompt_ids(self, address: Address, path: str, request: dict[str, Any], body: bytes) -> list[int] | None:
        """The prompt's ids; None where one request holds several prompts, or more than text."""
        match path, request:
            case "/v1/chat/completions", {"messages": list(messages)} if all(map(_is_text, messages)):
                return await self._server.tokenize(address, await self._server.prompt(address, body))
            case "/v1/completions", {"prompt": str(text)}:
                return await self._server.tokenize(address, text)
            case "/v1/completions", {"prompt": list(ids)} if ids and all(type(id_) is int for id_ in ids):
                return ids
        return None

    async def _idle_slot(self, address: Address, session: SessionRef) -> int:
        """The slot's number, checked: the engine takes one that is out of range for another slot's, and an action on
        a busy slot may never be answered."""
        slot = await self._slot(address, session)
        if slot.is_processing:
            raise EngineRefused(f"slot {slot.id} is busy")
        return slot.id

    async def _slot(self, address: Address, session: SessionRef) -> Slot:
        for slot in await self._server.slots(address):
            if slot.id == session.slot:
                return slot
        raise EngineRefused(f"llama-server has no slot {session.slot}")


async def _require_movable(files: Sequence[Path], spec: Spec) -> None:
    """Raises EngineRefused where the files say that llama-server uses restored caches of the model seldom or never."""
    try:
        model = await asyncio.to_thread(read_model, files, spec.model)
    except ConfigError:
        return  # what cannot be read was told before the launch
    if model.recurrent:
        raise EngineRefused(
            f"the model ({model.architecture}) is recurrent or hybrid, and a restored cache of it is used only where "
            "the prompt extends all of it",
            remedy="remove kv_share from the model",
        )
    if model.window is not None and not swa_full(spec):
        raise EngineRefused(
            f"the model's layers have a sliding window of {model.window} tokens, and a restored cache is not used",
            remedy="add --swa-full to the model's args (it takes more memory), or remove kv_share",
        )


def _folder(spec: Spec) -> Path:
    if spec.cache_dir is None:
        raise EngineRefused(f"no cache folder was given to {spec.model}: kv_share is off")
    return spec.cache_dir


async def _file_of_engine(path: Path) -> LlamaCacheFile:
    try:
        return await asyncio.to_thread(read_cache_file, path)
    except CacheRefused as error:
        raise EngineRefused(f"{path.name}: {error.message}") from error


def _request(body: bytes) -> dict[str, Any] | None:
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except msgspec.DecodeError:
        return None


def _is_text(message: object) -> bool:
    """Whether a message has only text in it, and not a picture or a sound, whose tokens no template shows."""
    content = message.get("content") if isinstance(message, dict) else None
    parts = content if isinstance(content, list) else []
    return all(isinstance(part, dict) and part.get("type") == "text" for part in parts)


def _usable(file: CacheFile, ids: list[int]) -> int:
    held = file.ids or ()
    common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(held, ids, strict=False)))
    sliding = file.sliding if isinstance(file, LlamaCacheFile) else True
    # With sliding-window layers a prompt that leaves the saved tokens inside the last window reads from a hole.
    return 0 if sliding and common < len(held) else common

"""Probe and load, against replies that real servers of three builds gave."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest

from viiwork_core import Address, Context, EngineRefused, EngineUnreachable, Load, Phase, Probe, SlotLoad, Spec
from viiwork_llamacpp.engine import LlamaCpp
from viiwork_llamacpp.options import LlamaCppOptions
from viiwork_llamacpp.server import REPLY_LIMIT

REPLIES = Path(__file__).parent / "replies"
LOADING = b'{"error":{"message":"Loading model","type":"unavailable_error","code":503}}'
T = TypeVar("T")


def ask(
    answers: Callable, context: Context, path: str, reply: tuple[int, bytes], question: Callable[..., Awaitable[T]]
) -> T:
    async def run() -> T:
        async with answers({path: reply}) as (address, _), LlamaCpp(LlamaCppOptions(), context) as engine:
            return await question(engine, address)

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("reply", "probe"),
    [
        ((200, b'{"status":"ok"}'), Probe(ready=True)),
        ((503, LOADING), Probe(ready=False, phase=Phase.LOADING, reason="Loading model")),
        ((500, b"<html>"), Probe(ready=False, phase=Phase.LOADING, reason="HTTP 500")),
        ((302, b""), Probe(ready=False, phase=Phase.LOADING, reason="HTTP 302")),
        ((404, b'{"error":"no"}'), Probe(ready=False, phase=Phase.LOADING, reason="HTTP 404")),
        ((503, b"x" * (REPLY_LIMIT + 1)), Probe(ready=False, phase=Phase.LOADING, reason="HTTP 503")),
    ],
)
def test_probe(answers: Callable, context: Context, reply: tuple[int, bytes], probe: Probe) -> None:
    assert ask(answers, context, "/health", reply, lambda engine, address: engine.probe(address)) == probe


def test_nobody_listens(spec: Spec, context: Context) -> None:
    async def run() -> None:
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            address = Address("127.0.0.1", closed.getsockname()[1])
            async with LlamaCpp(LlamaCppOptions(), context) as engine:
                with pytest.raises(EngineUnreachable):
                    await engine.probe(address)
                with pytest.raises(EngineUnreachable):
                    await engine.load(spec, address)

    asyncio.run(run())


def test_a_connection_that_breaks_is_unreachable(context: Context) -> None:
    async def run() -> None:
        async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.close()

        server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
        async with server, LlamaCpp(LlamaCppOptions(), context) as engine:
            with pytest.raises(EngineUnreachable):
                await engine.probe(Address("127.0.0.1", server.sockets[0].getsockname()[1]))

    asyncio.run(run())


def load_of(answers: Callable, context: Context, spec: Spec, body: bytes, status: int = 200) -> Load:
    return ask(answers, context, "/slots", (status, body), lambda engine, address: engine.load(spec, address))


FRESH, AFTER = ((False, None), (False, None)), ((False, 423), (False, 423))


@pytest.mark.parametrize(
    ("name", "slots"),
    [
        ("b10068_slots_idle_fresh", FRESH),
        ("b10068_slots_idle_after", AFTER),
        ("b10434_slots_idle_fresh", FRESH),
        ("b10434_slots_idle_after", AFTER),
        ("b10434_slots_busy_one", ((True, 99), (False, 2290))),
        ("b10434_slots_busy_two", ((True, 147), (True, 66))),
        ("b11434_slots_idle_fresh", FRESH),
        ("b11434_slots_idle_after", AFTER),
        ("b11434_slots_busy_one", ((True, 51), (False, 2290))),
        ("b11434_slots_busy_two", ((True, 56), (True, 28))),
    ],
)
def test_load_of_real_replies(
    answers: Callable, context: Context, spec: Spec, name: str, slots: tuple[tuple[bool, int | None], ...]
) -> None:
    load = load_of(answers, context, spec, (REPLIES / f"{name}.json").read_bytes())
    each = tuple(SlotLoad(n, busy, tokens) for n, (busy, tokens) in enumerate(slots))
    assert load == Load(slots=2, busy=sum(busy for busy, _ in slots), waiting=None, context=8192, each=each)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b"null",
        b"<html>",
        b'[{"id":0}]',
        b'[{"id":0,"n_ctx":0,"is_processing":false}]',
        b'[{"id":-1,"n_ctx":8,"is_processing":false}]',
        b'[{"id":0,"n_ctx":8,"is_processing":1}]',
        b'[{"id":0,"n_ctx":8,"is_processing":false,"n_prompt_tokens":-4}]',
        b'[{"id":0,"n_ctx":8,"is_processing":false},{"id":0,"n_ctx":8,"is_processing":false}]',
    ],
)
def test_an_answer_that_is_no_load_is_refused(answers: Callable, context: Context, spec: Spec, body: bytes) -> None:
    with pytest.raises(EngineRefused):
        load_of(answers, context, spec, body)


def test_an_error_answer_keeps_the_engines_words(answers: Callable, context: Context, spec: Spec) -> None:
    with pytest.raises(EngineRefused, match="503: Loading model"):
        load_of(answers, context, spec, LOADING, status=503)


def test_an_endless_answer_is_cut(answers: Callable, context: Context, spec: Spec) -> None:
    with pytest.raises(EngineRefused, match="over 4 MiB"):
        load_of(answers, context, spec, b" " * (REPLY_LIMIT + 1))


def test_control_paths_are_not_for_clients() -> None:
    assert not [path for path in LlamaCpp.wire.endpoints if path.startswith(("/slots", "/props", "/lora"))]
    assert LlamaCpp.wire.slot_field == "id_slot"
